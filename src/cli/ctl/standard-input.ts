import { HearthError } from "../../core/index.ts";

const BYTES_MAX = 64 * 1024 * 1024;

/** All of standard input as text. Throws USAGE where it is no UTF-8, or longer than 64 MiB. */
export async function standardInput(): Promise<string> {
  const decoder = new TextDecoder("utf-8", { fatal: true });
  const parts: string[] = [];
  let bytes = 0;
  try {
    for await (const chunk of Bun.stdin.stream()) {
      bytes += chunk.length;
      if (bytes > BYTES_MAX) throw new HearthError("USAGE", "standard input has over 64 MiB");
      parts.push(decoder.decode(chunk, { stream: true }));
    }
    parts.push(decoder.decode());
  } catch (thrown) {
    if (!(thrown instanceof TypeError)) throw thrown;
    throw new HearthError("USAGE", "standard input is no UTF-8", { cause: thrown });
  }
  return parts.join("");
}
