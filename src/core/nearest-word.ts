const CHARACTERS_MAX = 40;

/**
 * Returns the number of edits that turn `a` into `b`. An edit inserts, deletes or replaces a
 * character, or swaps two neighbours.
 */
function editDistance(a: string, b: string): number {
  let before: number[] = [];
  let above = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1];
      let least = Math.min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (same ? 0 : 1));
      const swapped = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      if (swapped) least = Math.min(least, before[j - 2] + 1);
      row.push(least);
    }
    before = above;
    above = row;
  }
  return above[b.length];
}

/**
 * Returns the word of `known` (in lower case) that `word` was probably meant to be: the only one
 * that begins with `word`, else the most similar one. Null if none is similar.
 */
export function nearestWord(word: string, known: readonly string[]): string | null {
  if (word === "" || word.length > CHARACTERS_MAX) return null;
  const plain = word.toLowerCase();
  const beginning = known.filter((candidate) => candidate.startsWith(plain));
  if (beginning.length === 1) return beginning[0];
  let best: string | null = null;
  let bestDistance = Math.max(2, Math.floor(word.length / 3)) + 1;
  for (const candidate of known) {
    const distance = editDistance(plain, candidate);
    if (distance >= bestDistance || distance >= word.length) continue;
    best = candidate;
    bestDistance = distance;
  }
  return best;
}
