import { messageOf } from "../../core/index.ts";
import { refuse } from "./fields.ts";
import { LIMITS } from "./trace.ts";

export interface Line {
  /** From 1, as editors count. */
  readonly number: number;
  readonly text: string;
}

/**
 * The lines of a file that is plain, gzip or Zstandard (told by its first bytes), blank ones left
 * out. Holds one line and one piece of the file at a time. Throws TRACE_INVALID where the file
 * cannot be read, its compression is broken or ends early, or a line is too long or not UTF-8.
 */
export async function* readLines(path: string): AsyncGenerator<Line, void, void> {
  const source = (await openSource(path)).getReader();
  const decoder = new TextDecoder("utf-8", { fatal: true });
  let number = 0;
  let rest: Uint8Array[] = [];
  let restBytes = 0;
  const take = (last: Uint8Array): string => {
    number++;
    const bytes = rest.length === 0 ? last : Buffer.concat([...rest, last]);
    rest = [];
    restBytes = 0;
    return decodeLine(decoder, bytes, path, number);
  };
  try {
    while (true) {
      const piece = await nextPiece(source, path, number + 1);
      if (piece === null) break;
      let start = 0;
      let end = piece.indexOf(0x0a);
      while (end >= 0) {
        checkLength(restBytes + end - start, path, number + 1);
        const text = take(piece.subarray(start, end));
        if (text !== "") yield { number, text };
        start = end + 1;
        end = piece.indexOf(0x0a, start);
      }
      if (start === piece.length) continue;
      rest.push(piece.subarray(start));
      restBytes += piece.length - start;
      checkLength(restBytes, path, number + 1);
    }
    if (restBytes > 0) {
      const text = take(new Uint8Array(0));
      if (text !== "") yield { number, text };
    }
  } finally {
    // A source that failed says so again here; the reader of the lines has heard it.
    await source.cancel().catch(() => undefined);
  }
}

function checkLength(bytes: number, path: string, line: number): void {
  if (bytes > LIMITS.lineBytesMax)
    throw refuse(`${path}:${line}: the line exceeds ${LIMITS.lineBytesMax} bytes`);
}

function decodeLine(decoder: TextDecoder, bytes: Uint8Array, path: string, line: number): string {
  try {
    return decoder.decode(bytes).trim();
  } catch (thrown) {
    throw refuse(`${path}:${line}: the line is not UTF-8`, thrown);
  }
}

async function nextPiece(
  source: { read(): Promise<{ done: boolean; value?: Uint8Array | undefined }> },
  path: string,
  line: number,
): Promise<Uint8Array | null> {
  try {
    const next = await source.read();
    return next.value ?? null;
  } catch (thrown) {
    throw refuse(`${path}:${line}: cannot be read or decompressed: ${messageOf(thrown)}`, thrown);
  }
}

/**
 * Decompressed bytes. `Bun.file` and web streams, not node's: they open files inside the executable
 * too, notice a Zstandard file that ends early, and take windows of up to 128 MiB unasked.
 */
async function openSource(path: string): Promise<ReadableStream<Uint8Array>> {
  const file = Bun.file(path);
  const head = await file
    .slice(0, 4)
    .bytes()
    .catch((thrown: unknown) => {
      throw refuse(`${path}: cannot be read: ${messageOf(thrown)}`, thrown);
    });
  const compression = compressionOf(head);
  if (compression === null) return file.stream();
  return file.stream().pipeThrough(new DecompressionStream(compression));
}

function compressionOf(head: Uint8Array): "gzip" | "zstd" | null {
  if (head[0] === 0x1f && head[1] === 0x8b) return "gzip";
  if (head[0] === 0x28 && head[1] === 0xb5 && head[2] === 0x2f && head[3] === 0xfd) return "zstd";
  return null;
}
