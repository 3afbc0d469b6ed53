import {
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { join } from "node:path";
import { type Random, randomBelow } from "../../src/core/index.ts";
import { BLOCKS, digestOf } from "./content.ts";
import { configOf, type Profile } from "./profiles.ts";
import type { Promises } from "./promises.ts";

const HEADER_BYTES = 4096;
const DIGEST_AT = 16;
/** So many that one of them is read. */
const FILES_DAMAGED = 20;
const idsByDigest = new Map(
  Array.from({ length: BLOCKS }, (_, id) => [digestOf(id).toHex(), id] as const),
);

/** The folders of an agent, and what befalls them while it is dead. */
export class World {
  readonly folder: string;
  readonly ssdDir: string;
  #indexDir: string;
  readonly socket: string;
  readonly configPath: string;
  readonly #promises: Pick<Promises, "damaged" | "nextLife">;
  /** Files that were tampered with, and their blocks. */
  readonly #damaged = new Map<string, number>();

  /** `ssdDir` may lie on another file system than `folder`. */
  constructor(folder: string, ssdDir: string, promises: Pick<Promises, "damaged" | "nextLife">) {
    this.folder = folder;
    this.ssdDir = ssdDir;
    this.#indexDir = join(ssdDir, "index");
    this.socket = join(folder, "e.sock");
    this.configPath = join(folder, "hearth.toml");
    this.#promises = promises;
  }

  get indexDir(): string {
    return this.#indexDir;
  }

  configure(profile: Profile): void {
    writeFileSync(this.configPath, configOf(profile, this));
  }

  /** Nothing is left of what was. The index lies where it did, or in `indexDir` from now on. */
  beginLife(indexDir = this.#indexDir): void {
    rmSync(this.#indexDir, { recursive: true, force: true });
    rmSync(this.ssdDir, { recursive: true, force: true });
    this.#indexDir = indexDir;
    mkdirSync(this.ssdDir, { recursive: true });
    this.#damaged.clear();
    this.#promises.nextLife();
  }

  /** Makes what an agent needs so that it comes to a point. */
  prepareFor(point: string, random: Random): void {
    const isFirst = point.startsWith("owner.") || /^index\..*migrated$/.test(point);
    if (isFirst) this.beginLife();
    else if (/^index\..*set-aside$/.test(point)) this.damageIndex();
    else if (point.startsWith("rename.") || point === "room.quarantined") {
      this.damageFiles(FILES_DAMAGED, random);
    }
  }

  /** The same for what only happens while the agent runs. */
  disturbFor(point: string): void {
    if (point === "rename.mkdir") {
      rmSync(join(this.ssdDir, "quarantine"), { recursive: true, force: true });
    }
    if (point !== "store.mkdir") return;
    for (const shard of this.#shards()) {
      const folder = join(this.ssdDir, shard);
      if (readdirSync(folder).length === 0) rmSync(folder, { recursive: true });
    }
  }

  /** Makes an index of which SQLite cannot even tell what it is. */
  damageIndex(): void {
    for (const name of ["hearth.sqlite", "hearth.sqlite-wal"]) {
      const path = join(this.#indexDir, name);
      if (existsSync(path)) overwrite(path, 0, new Uint8Array(100).fill(0xa5));
    }
  }

  /** Changes one byte in so many files. */
  damageFiles(count: number, random: Random): void {
    const paths = this.#blockFiles();
    for (let i = 0; i < count && paths.length > 0; i++) {
      const [path] = paths.splice(randomBelow(random, paths.length), 1);
      const bytes = readFileSync(path!);
      const id = idsByDigest.get(bytes.subarray(DIGEST_AT, DIGEST_AT + 32).toHex());
      if (id === undefined || bytes.length <= HEADER_BYTES) continue;
      const payloadBytes = Number(bytes.readBigUInt64LE(56));
      const at = HEADER_BYTES + randomBelow(random, payloadBytes);
      overwrite(path!, at, Uint8Array.of(bytes[at]! ^ 0x01));
      this.#promises.damaged(id);
      this.#damaged.set(path!, id);
    }
  }

  /** Removes tampered files that nobody has found: they would be found by `fsck`. */
  clearDamage(): void {
    for (const [path, id] of this.#damaged) {
      if (!existsSync(path)) continue;
      rmSync(path);
      this.#promises.damaged(id);
    }
    this.#damaged.clear();
  }

  #shards(): string[] {
    if (!existsSync(this.ssdDir)) return [];
    return readdirSync(this.ssdDir).filter((name) => /^[0-9a-f]{2}$/.test(name));
  }

  #blockFiles(): string[] {
    return this.#shards().flatMap((shard) =>
      readdirSync(join(this.ssdDir, shard))
        .filter((name) => name.endsWith(".kvb"))
        .map((name) => join(this.ssdDir, shard, name)),
    );
  }
}

function overwrite(path: string, at: number, bytes: Uint8Array): void {
  const fd = openSync(path, "r+");
  try {
    writeSync(fd, bytes, 0, bytes.length, at);
  } finally {
    closeSync(fd);
  }
}
