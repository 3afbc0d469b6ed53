import type { UpstreamAnswer, UpstreamFailure, UpstreamPiece } from "./upstream.ts";

/**
 * Reads on behind `first` until the answer is whole or longer than `bytesMax`, so that one that
 * breaks off is found before anything of it is passed on. The answer gives what was read again.
 */
export async function holdAnswer(
  answer: UpstreamAnswer,
  first: UpstreamPiece,
  bytesMax: number,
): Promise<{ readonly answer: UpstreamAnswer; readonly first: UpstreamPiece } | UpstreamFailure> {
  const held: UpstreamPiece[] = [];
  let length = 0;
  for (let piece = first; ; piece = await answer.read()) {
    if (piece.kind === "failed") return piece;
    held.push(piece);
    if (piece.kind === "end") break;
    length += piece.bytes.length;
    if (length > bytesMax) break;
  }
  const read = () => {
    const next = held.shift();
    return next === undefined ? answer.read() : Promise.resolve(next);
  };
  return { answer: { ...answer, read }, first: await read() };
}
