import { closeSync, constants, fstatSync, openSync, readSync } from "node:fs";
import { decodeHeader, type KvbHeader } from "./header.ts";
import { fileBytesOf, HEADER_BYTES } from "./sizes.ts";

/** What can be wrong with a block file, whatever its name is. */
export type FileFault = "unreadable" | "size" | "header" | "payload" | "padding";

interface FileSize {
  readonly fileBytes: number;
  /** As the file system counts them. */
  readonly allocatedBytes: number;
}

type Verdict =
  | { readonly ok: true; readonly header: KvbHeader }
  | { readonly ok: false; readonly fault: FileFault; readonly why: string };

export type Inspection = FileSize & Verdict;

function wrong(fault: FileFault, why: string): Verdict {
  return { ok: false, fault, why };
}

const SHRANK = wrong("size", "became shorter while it was read");

const BUFFER_BYTES = 4 * 2 ** 20;

/** Looks at block files one after the other; holds one buffer, as large as the largest payload. */
export class FileInspector {
  readonly #header = new Uint8Array(HEADER_BYTES);
  #buffer = new Uint8Array(BUFFER_BYTES);

  /** Header and size; with `deep` also the payload's checksum and that the padding is zero. */
  inspect(path: string, deep: boolean): Inspection {
    let size: FileSize = { fileBytes: 0, allocatedBytes: 0 };
    let fd = -1;
    try {
      fd = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW);
      const { size: fileBytes, blocks } = fstatSync(fd);
      size = { fileBytes, allocatedBytes: blocks * 512 };
      return { ...size, ...this.#judge(fd, fileBytes, deep) };
    } catch (thrown) {
      const code = (thrown as NodeJS.ErrnoException).code ?? String(thrown);
      return { ...size, ok: false, fault: "unreadable", why: `cannot be read: ${code}` };
    } finally {
      if (fd >= 0) closeSync(fd);
    }
  }

  #judge(fd: number, fileBytes: number, deep: boolean): Verdict {
    if (fileBytes < HEADER_BYTES) return wrong("size", `${fileBytes} bytes hold no header`);
    if (!readAll(fd, this.#header, 0)) return SHRANK;
    const decoded = decodeHeader(this.#header);
    if (!decoded.ok) return wrong("header", decoded.why);
    const { header } = decoded;
    const bytes = fileBytesOf(header.payloadBytes);
    if (fileBytes !== bytes) return wrong("size", `${fileBytes} bytes, its header says ${bytes}`);
    if (!deep) return { ok: true, header };
    const content = this.#room(fileBytes - HEADER_BYTES);
    if (!readAll(fd, content, HEADER_BYTES)) return SHRANK;
    const payload = content.subarray(0, header.payloadBytes);
    if (Bun.hash.xxHash3(payload) !== header.payloadChecksum) {
      return wrong("payload", "the payload is not what its checksum says");
    }
    const isPadded = content.subarray(header.payloadBytes).every((byte) => byte === 0);
    if (!isPadded) return wrong("padding", "bytes behind the payload are not zero");
    return { ok: true, header };
  }

  #room(bytes: number): Uint8Array<ArrayBuffer> {
    if (this.#buffer.length < bytes) this.#buffer = new Uint8Array(bytes);
    return this.#buffer.subarray(0, bytes);
  }
}

/** False where the file ends before the buffer is full. */
function readAll(fd: number, into: Uint8Array, position: number): boolean {
  let filled = 0;
  while (filled < into.length) {
    const count = readSync(fd, into, filled, into.length - filled, position + filled);
    if (count === 0) return false;
    filled += count;
  }
  return true;
}
