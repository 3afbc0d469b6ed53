import type { UpstreamAnswer } from "./upstream.ts";

/** A whole body as text. Null: it failed, or there is more, and the connection is closed. */
export async function readAll(answer: UpstreamAnswer, bytesMax: number): Promise<string | null> {
  const parts: Uint8Array[] = [];
  let length = 0;
  for (;;) {
    const piece = await answer.read();
    if (piece.kind === "failed") return null;
    if (piece.kind === "end") return Buffer.concat(parts).toString("utf8");
    length += piece.bytes.length;
    if (length > bytesMax) {
      answer.close();
      return null;
    }
    parts.push(piece.bytes);
  }
}
