/** Single-character edits that turn `a` into `b` (Levenshtein). */
function editDistance(a: string, b: string): number {
  let above = Array.from({ length: b.length + 1 }, (_, column) => column);
  for (let row = 1; row <= a.length; row++) {
    const current = [row];
    for (let column = 1; column <= b.length; column++) {
      const replaced = above[column - 1]! + (a[row - 1] === b[column - 1] ? 0 : 1);
      current.push(Math.min(replaced, above[column]! + 1, current[column - 1]! + 1));
    }
    above = current;
  }
  return above[b.length]!;
}

const WORD_CHARACTERS_MAX = 40;

/** The one of `known` that was probably meant: a single one that begins so, else the nearest. */
export function nearest(word: string, known: readonly string[]): string | null {
  if (word === "" || word.length > WORD_CHARACTERS_MAX) return null;
  const beginning = known.filter((candidate) => candidate.startsWith(word));
  if (beginning.length === 1) return beginning[0]!;
  let best: string | null = null;
  let bestDistance = Math.max(2, Math.floor(word.length / 3)) + 1;
  for (const candidate of known) {
    const distance = editDistance(word, candidate);
    if (distance < bestDistance) {
      best = candidate;
      bestDistance = distance;
    }
  }
  return best;
}
