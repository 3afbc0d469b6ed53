import { mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { open, rename } from "node:fs/promises";
import { join } from "node:path";
import { messageOf, type WorkerId } from "../../core/index.ts";
import { decodeFeed, type SavedFeed } from "../../events/index.ts";
import type { Logger } from "../../observability/index.ts";

export interface FeedSavesOptions {
  /** A folder of this router alone; made if it is missing. */
  readonly folder: string;
  readonly everyMs: number;
  readonly logger: Logger;
}

const SUFFIX = ".feed";
const HEAD_BYTES = 4;
const CHECK_BYTES = 8;

/**
 * What is known of engines that this router follows itself, one file for each rank: pages with
 * their lengths (u32 LE), then XXH3 (u64 LE) of all of them. Files are replaced as a whole.
 */
export class FeedSaves {
  readonly everyMs: number;
  readonly #options: FeedSavesOptions;
  #failures = 0;

  constructor(options: FeedSavesOptions) {
    this.#options = options;
    this.everyMs = options.everyMs;
    mkdirSync(options.folder, { recursive: true, mode: 0o750 });
  }

  get failures(): number {
    return this.#failures;
  }

  /** Null: nothing was saved, or it is damaged. */
  read(worker: WorkerId, rank: number): SavedFeed | null {
    const path = this.#pathOf(worker, rank);
    let bytes: Uint8Array;
    try {
      bytes = readFileSync(path);
    } catch {
      return null;
    }
    const pages = pagesIn(bytes);
    const saved = pages === null ? null : decodeFeed(pages);
    if (saved === null) this.#options.logger.warn("a saved engine snapshot is damaged", { path });
    return saved;
  }

  async write(worker: WorkerId, rank: number, pages: readonly Uint8Array[]): Promise<void> {
    const path = this.#pathOf(worker, rank);
    const draft = `${path}.new`;
    try {
      {
        await using file = await open(draft, "w", 0o640);
        await file.write(bytesOf(pages));
        await file.sync();
      }
      await rename(draft, path);
    } catch (thrown) {
      this.#failures++;
      const why = messageOf(thrown);
      this.#options.logger.warn("an engine snapshot cannot be saved", { path, why });
      rmSync(draft, { force: true });
    }
  }

  forget(worker: WorkerId): void {
    const prefix = `${worker}.`;
    for (const name of readdirSync(this.#options.folder)) {
      const rank = name.slice(prefix.length, -SUFFIX.length);
      const isOf = name.startsWith(prefix) && name.endsWith(SUFFIX) && /^[0-9]+$/.test(rank);
      if (isOf) rmSync(join(this.#options.folder, name), { force: true });
    }
  }

  /** Forgets all that was saved. */
  reset(): void {
    rmSync(this.#options.folder, { recursive: true, force: true });
    mkdirSync(this.#options.folder, { recursive: true, mode: 0o750 });
  }

  #pathOf(worker: WorkerId, rank: number): string {
    return join(this.#options.folder, `${worker}.${rank}${SUFFIX}`);
  }
}

function bytesOf(pages: readonly Uint8Array[]): Uint8Array {
  const parts = pages.flatMap((page) => {
    const head = Buffer.alloc(HEAD_BYTES);
    head.writeUInt32LE(page.length);
    return [head, page];
  });
  const body = Buffer.concat(parts);
  const check = Buffer.alloc(CHECK_BYTES);
  check.writeBigUInt64LE(Bun.hash.xxHash3(body));
  return Buffer.concat([body, check]);
}

function pagesIn(bytes: Uint8Array): Uint8Array[] | null {
  const end = bytes.length - CHECK_BYTES;
  if (end < 0) return null;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const body = bytes.subarray(0, end);
  if (view.getBigUint64(end, true) !== Bun.hash.xxHash3(body)) return null;
  const pages: Uint8Array[] = [];
  for (let at = 0; at < end; ) {
    if (at + HEAD_BYTES > end) return null;
    const length = view.getUint32(at, true);
    at += HEAD_BYTES;
    if (at + length > end) return null;
    pages.push(body.subarray(at, at + length));
    at += length;
  }
  return pages;
}
