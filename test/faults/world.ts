import { existsSync, readdirSync, readFileSync, readlinkSync, writeFileSync } from "node:fs";
import { LAYER_ALL } from "../../src/core/index.ts";
import { setFaults } from "../../src/native/index.ts";
import { purgeBlocks } from "../../src/store/index.ts";
import { type BlockName, type BlockSpec, digestOf, specOf } from "../store/names.ts";
import {
  allocatedBelow,
  type Method,
  type SsdHost,
  SsdKit,
  type SsdKitOptions,
} from "../store/ssd/ssd-kit.ts";
import type { StoreEngine } from "../store/store-engine.ts";
import { IndexBox } from "./memory-index.ts";

/** Something that may never happen, whatever fails. */
export class Violation extends Error {}

const CAPACITY = 64 * 12_288;
/** Ticks of the tier until everything that goes on must be over. */
const TICKS_MAX = 400;
const TICK_MS = 250;

/**
 * A store whose disk fails as planned, with what must hold at any time: no wrong byte, nothing that
 * was purged, no more bytes than the cap.
 */
export class World {
  readonly #host: SsdHost;
  readonly #dir: string;
  readonly #box = new IndexBox();
  readonly #options: Partial<SsdKitOptions>;
  readonly #purged = new Set<BlockName>();
  readonly #named = new Set<BlockName>();
  readonly #damaged = new Set<BlockName>();
  /** Nothing fails: every block must be there. */
  readonly #sound: boolean;
  #kit: SsdKit | null = null;
  #engine: StoreEngine | null = null;

  constructor(
    host: SsdHost,
    dir: string,
    sound: boolean,
    method: Method,
    options: Partial<SsdKitOptions>,
  ) {
    this.#host = host;
    this.#dir = dir;
    this.#sound = sound;
    this.#options = { depth: 4, method, capacityBytes: CAPACITY, ...options };
  }

  /** The store, where it could be opened. */
  get kit(): SsdKit | null {
    return this.#kit;
  }

  /** False where the start was refused. */
  async open(options: Partial<SsdKitOptions> = {}): Promise<boolean> {
    try {
      this.#kit = await SsdKit.open(this.#host, {
        ...this.#options,
        ...options,
        dir: this.#dir,
        openIndex: async (_, run) => this.#box.open(run),
      });
    } catch (error) {
      if (!isRefusal(error)) throw error;
      return false;
    }
    this.#engine = this.#kit.engine();
    return true;
  }

  async put(...blocks: (BlockName | BlockSpec)[]): Promise<void> {
    const names = blocks.map((block) => specOf(block).name);
    for (const name of names) this.#named.add(name);
    for (const outcome of (await this.#engine?.put(...blocks)) ?? []) {
      // A write that failed says so; a checksum of the writer's cannot be wrong here.
      if (outcome === "corrupt") throw new Violation("a commit was told corrupt");
    }
    for (const name of names) {
      this.#purged.delete(name);
      this.#damaged.delete(name);
    }
  }

  /** Writes blocks one after the other, so that each finds its place. */
  async putEach(...names: BlockName[]): Promise<void> {
    for (const name of names) {
      await this.put(name);
      await this.settle();
    }
  }

  /** Reads blocks; every byte of what is answered is proved. */
  async load(...names: BlockName[]): Promise<readonly string[]> {
    const read = (await this.#engine?.load(...names)) ?? [];
    read.forEach((outcome, i) => {
      const name = names[i]!;
      const isGone = this.#purged.has(name);
      if (outcome === "wrong bytes") throw new Violation(`wrong bytes of ${name}`);
      if (outcome === "ok" && isGone) throw new Violation(`${name} was purged, and is back`);
      const wanted = isGone || this.#damaged.has(name) ? "miss" : "ok";
      if (this.#sound && outcome !== wanted) {
        throw new Violation(`${name} is ${outcome} although nothing fails`);
      }
    });
    return read;
  }

  /** Of a block that may have gone: whatever is answered is right. */
  async #prove(name: BlockName): Promise<void> {
    const [handle] = await this.#engine!.fetch([name]);
    if (handle!.outcome !== "ok") return;
    if (!this.#engine!.proves(handle!)) throw new Violation(`wrong bytes of ${name}`);
    if (this.#purged.has(name)) throw new Violation(`${name} was purged, and is back`);
    this.#engine!.release([handle!]);
  }

  async purge(...names: BlockName[]): Promise<void> {
    if (this.#kit === null) return;
    const addresses = names.map((name) => ({ digest: digestOf(name), layer: LAYER_ALL }));
    const asked = purgeBlocks(this.#kit.store, addresses);
    (await this.#during(asked)).forEach((outcome, i) => {
      if (outcome === "done") this.#purged.add(names[i]!);
    });
  }

  async persist(): Promise<void> {
    if (this.#kit === null) return;
    await this.#during(this.#kit.ssd.persist());
  }

  leaveRam(): void {
    this.#kit?.leaveRam();
  }

  /** Lets time pass until nothing goes on; it must not take for ever. */
  async settle(): Promise<void> {
    const kit = this.#kit;
    if (kit === null) return;
    for (let tick = 0; tick < TICKS_MAX; tick++) {
      if (tick > 0 || kit.disk.inFlight > 0) await pause(tick);
      if (isIdle(kit)) return this.#checkCap();
      if (tick % 8 === 7) kit.clock.advance(TICK_MS);
    }
    throw new Violation(`never settles: ${JSON.stringify(kit.ssd.snapshot())}`);
  }

  /** Lets time pass while something goes on that must come to its end. */
  async #during<T>(work: Promise<T>): Promise<T> {
    let isOver = false;
    const over = work.finally(() => {
      isOver = true;
    });
    for (let tick = 0; tick < TICKS_MAX && !isOver; tick++) {
      await pause(tick);
      if (tick % 8 === 7) this.#kit?.clock.advance(TICK_MS);
    }
    if (!isOver) throw new Violation("never comes to its end");
    return over;
  }

  async pass(ms: number): Promise<void> {
    for (let passed = 0; passed < ms; passed += TICK_MS) {
      await this.#kit?.clock.advanceAsync(TICK_MS);
    }
    await this.settle();
  }

  #checkCap(): void {
    const bytes = allocatedBelow(this.#dir);
    const cap = this.#kit!.ssd.room.capacityBytes;
    if (bytes > cap) throw new Violation(`${bytes} bytes on disk above the cap of ${cap}`);
  }

  /** Stops and starts again. `kill`: what the index had not committed is lost. */
  async restart(how: "stop" | "kill" | "lost index"): Promise<void> {
    if (how === "kill") this.#box.crash();
    await this.close();
    if (how === "lost index") this.#box.lose();
    await this.open();
  }

  async close(): Promise<void> {
    const kit = this.#kit;
    this.#kit = null;
    this.#engine?.die();
    this.#engine = null;
    await kit?.close();
  }

  /** Damages the file of a block on the disk, where there is one. */
  damage(name: BlockName): void {
    const path = this.#kit?.fileOf(name);
    if (path === undefined || !existsSync(path)) return;
    const bytes = readFileSync(path);
    bytes[5_000]! ^= 1;
    this.#damaged.add(name);
    writeFileSync(path, bytes);
  }

  /**
   * With the faults over: the store comes back by itself, takes and gives blocks again, and nothing
   * is left of what failed; the same after one more start.
   */
  async verify(): Promise<void> {
    setFaults(this.#host.native, "");
    if (this.#kit === null && !(await this.open())) {
      throw new Violation("it does not start although nothing fails any more");
    }
    await this.#verifyOpen("again");
    await this.restart("stop");
    await this.#verifyOpen("once more");
    const { table } = this.#kit!.store;
    const blocks = table.residentBlocks(4);
    const files = this.#kit!.files().filter((path) => !path.startsWith("quarantine"));
    if (files.length !== blocks) {
      throw new Violation(`${files.length} files for ${blocks} blocks`);
    }
    await this.close();
  }

  async #verifyOpen(fresh: BlockName): Promise<void> {
    const kit = this.#kit!;
    await this.#returns(kit);
    // Blocks that RAM alone has may have to go down first to make room.
    for (let i = 0; i < 8 && !kit.ssdHolds(fresh); i++) await this.putEach(fresh);
    if (kit.ssdHolds(fresh)) this.leaveRam();
    await this.settle();
    const [read] = await this.load(fresh);
    if (read !== "ok") throw new Violation(`a fresh block is ${read}`);
    for (const name of this.#named) await this.#prove(name);
    await this.settle();
    this.#engine!.die();
    const problems = kit.problems();
    if (problems.length > 0) throw new Violation(problems.join("; "));
    this.#engine = kit.engine();
  }

  /** Waits for reads and writes to be admitted again. */
  async #returns(kit: SsdKit): Promise<void> {
    for (let i = 0; i < 4; i++) {
      for (let tick = 0; tick < TICKS_MAX && !(kit.ssd.takesBlocks && kit.ssd.readable); tick++) {
        await kit.clock.advanceAsync(TICK_MS);
        await pause(tick);
      }
      // The breaker closes by a read.
      await this.settle();
    }
    if (!kit.ssd.takesBlocks) throw new Violation("writes are never admitted again");
  }
}

/** Lets completions come in; from time to time for longer, should a thread need it. */
async function pause(tick: number): Promise<void> {
  if (tick > 3) await Bun.sleep(tick > 40 ? 5 : 0.2);
  else await new Promise((resolve) => setImmediate(resolve));
}

function isIdle({ ssd, disk }: SsdKit): boolean {
  return disk.inFlight === 0 && ssd.writer.queuedBlocks === 0 && ssd.reader.reading === 0;
}

/** A start may be refused, in words. */
function isRefusal(error: unknown): boolean {
  const code = (error as { code?: string }).code;
  return code === "NATIVE_FAILED" || code === "SSD_UNAVAILABLE";
}

/** Descriptors and memory files of this process: what a leak would make more of. */
export interface Resources {
  readonly fds: readonly string[];
  readonly maps: number;
}

export function resources(): Resources {
  const maps = readFileSync("/proc/self/maps", "utf8").split("memfd:").length;
  const fds = readdirSync("/proc/self/fd").flatMap((fd) => {
    try {
      return [`${fd} ${readlinkSync(`/proc/self/fd/${fd}`)}`];
    } catch {
      // That of the listing itself.
      return [];
    }
  });
  return { fds, maps };
}
