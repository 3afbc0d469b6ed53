import { LAYER_ALL, type Random, randomBelow, seededRandom } from "../../src/core/index.ts";
import { IdentifyKind } from "../../src/engine/protocol/index.ts";
import { AgentProcess } from "../app/agent-process.ts";
import {
  BLOCK_BYTES,
  type LaneBlock,
  type NativeReader,
  openReaders,
  type Reader,
} from "./ram-readers.ts";

export interface RamLaneOptions {
  /** Bits to flip, with and without an SSD tier together. */
  readonly count: number;
  readonly seed: number;
  /** An existing folder for the SSD tier. */
  readonly dir: string;
  readonly onProgress: (flipped: number) => void;
}

export interface RamLaneReport {
  flipped: number;
  /** Blocks that were a miss once, and those that came whole at the first read. */
  missed: number;
  healed: number;
  wrong: number;
  /** Blocks that were not good again after one miss. */
  notGoodAgain: number;
  /** Blocks that were left alone, and of these the ones that were not served. */
  controls: number;
  controlsMissed: number;
  /** What the agents counted: blocks dropped from RAM, and damage put down to the drive. */
  dropped: number;
  driveBlamed: number;
  readers: string[];
  skipped: string[];
  failures: string[];
}

const BLOCKS = 60;
const CONTROLS = 10;
const WRITTEN_MS = 60_000;

export function isClean(report: RamLaneReport): boolean {
  const { wrong, notGoodAgain, controlsMissed, driveBlamed, failures } = report;
  return wrong + notGoodAgain + controlsMissed + driveBlamed + failures.length === 0;
}

/** Flips bits in the live arenas of two agents, one with an SSD tier, and reads every block. */
export async function runRamLane(options: RamLaneOptions): Promise<RamLaneReport> {
  const report: RamLaneReport = {
    ...{ flipped: 0, missed: 0, healed: 0, wrong: 0, notGoodAgain: 0 },
    ...{ controls: 0, controlsMissed: 0, dropped: 0, driveBlamed: 0 },
    ...{ readers: [], skipped: [], failures: [] },
  };
  const half = Math.ceil(options.count / 2);
  await new Lane(report, options, false).run(half);
  await new Lane(report, options, true).run(options.count - half);
  return report;
}

class Lane {
  readonly #report: RamLaneReport;
  readonly #options: RamLaneOptions;
  readonly #hasSsd: boolean;
  readonly #random: Random;

  constructor(report: RamLaneReport, options: RamLaneOptions, hasSsd: boolean) {
    this.#report = report;
    this.#options = options;
    this.#hasSsd = hasSsd;
    this.#random = seededRandom(options.seed + (hasSsd ? 1 : 0));
  }

  async run(count: number): Promise<void> {
    const ssd = { ssd_dir: this.#options.dir, ssd_gib: 256 / 1_024 };
    // So slow that readers, not the scrub, find most of it.
    const kv = { ram_gib: 64 / 1_024, scrub_rate: "64KiB", ...(this.#hasSsd ? ssd : {}) };
    await using agent = await AgentProcess.start({ config: { kv } });
    const report = this.#report;
    const readers = await openReaders(agent, (why) => report.skipped.push(why));
    await using stack = new AsyncDisposableStack();
    for (const reader of readers) stack.use(reader);
    report.readers = readers.map(({ name }) => name);
    const before = report.flipped;
    for (let round = 0; report.flipped - before < count; round++) {
      const left = count - (report.flipped - before);
      await this.#round(agent, readers, round, left);
      this.#options.onProgress(report.flipped);
    }
    await this.#judgeAgent(agent, report.flipped - before);
  }

  async #round(
    agent: AgentProcess,
    readers: readonly [NativeReader, ...Reader[]],
    round: number,
    most: number,
  ): Promise<void> {
    const [native] = readers;
    const blocks = await this.#makeBlocks(native, round);
    const stored = await native.put(blocks);
    if (stored.some((outcome) => outcome !== "ok")) throw new Error(`not stored: ${stored}`);
    // By turns the bits flip before the blocks are on SSD, and after that.
    if (this.#hasSsd && round % 2 === 1) await written(agent);
    const flipped = new Set<LaneBlock>();
    for (const [i, block] of blocks.entries()) {
      if (i % CONTROLS === 0 || flipped.size === most) continue;
      const at = randomBelow(this.#random, BLOCK_BYTES);
      if (await native.flip(block, at, randomBelow(this.#random, 8))) flipped.add(block);
    }
    this.#report.flipped += flipped.size;
    for (const [turn, reader] of readers.entries()) {
      const share = blocks.filter((_, i) => i % readers.length === turn);
      const other = readers[(turn + 1) % readers.length]!;
      await this.#read(share, flipped, reader, other);
    }
  }

  async #makeBlocks({ engine }: NativeReader, round: number): Promise<LaneBlock[]> {
    const keys = Array.from({ length: BLOCKS }, (_, i) =>
      new Bun.CryptoHasher("sha256").update(`${round} ${i} ${this.#random.u32()}`).digest(),
    );
    const into = { count: 0, layer: 0, digests: new Uint8Array(BLOCKS * 32) };
    const items = new Uint8Array(Buffer.concat(keys));
    const wish = { kind: IdentifyKind.chainKeys, layer: LAYER_ALL, count: BLOCKS, items };
    await engine.client.identify(wish, into);
    return keys.map((key, i) => ({
      key: new Uint8Array(key),
      digest: into.digests.slice(i * 32, (i + 1) * 32),
    }));
  }

  async #read(
    blocks: readonly LaneBlock[],
    flipped: ReadonlySet<LaneBlock>,
    reader: Reader,
    other: Reader,
  ): Promise<void> {
    const report = this.#report;
    const first = await reader.get(blocks);
    const missing = blocks.filter((_, i) => first[i] === "miss");
    const stored = missing.length === 0 ? [] : await reader.put(missing);
    const again = await reader.get(blocks);
    const last = await other.get(blocks);
    for (const [i, block] of blocks.entries()) {
      const reads = [first[i], again[i], last[i]];
      if (reads.includes("wrong")) report.wrong++;
      if (!flipped.has(block)) {
        report.controls++;
        if (reads.some((read) => read !== "right")) report.controlsMissed++;
        continue;
      }
      if (first[i] === "miss") report.missed++;
      else if (this.#hasSsd) report.healed++;
      else report.failures.push(`${reader.name}: a damaged block was read as ${first[i]}`);
      if (again[i] === "right" && last[i] === "right") continue;
      report.notGoodAgain++;
      const put = stored[missing.indexOf(block)] ?? "nothing";
      report.failures.push(`${reader.name}, ${other.name}: ${reads.join(", ")}; put: ${put}`);
    }
    const present = stored.filter((outcome) => outcome !== "ok");
    // Without SSD there is no other copy that a put could find.
    if (!this.#hasSsd && present.length > 0) report.failures.push(`put again: ${present}`);
  }

  /** What the agent says of it must be the truth. */
  async #judgeAgent(agent: AgentProcess, flipped: number): Promise<void> {
    const report = this.#report;
    const dropped = await agent.metric("hearth_ram_corrupt_total");
    report.dropped += dropped;
    if (dropped !== flipped) report.failures.push(`${flipped} flipped, ${dropped} dropped`);
    const raised = (code: string) => agent.metric("hearth_health_raised_total", `code="${code}"`);
    report.driveBlamed += await raised("KV_SSD_CSUM");
    if (flipped > 0 && (await raised("KV_RAM_CSUM")) === 0) report.failures.push("RAM not named");
    if (!this.#hasSsd) return;
    report.driveBlamed += await agent.metric("hearth_ssd_blocks_total", 'event="corrupt"');
    report.driveBlamed += await agent.metric("hearth_ssd_quarantined_files");
  }
}

/** Resolves when nothing is on its way to SSD. */
async function written(agent: AgentProcess): Promise<void> {
  const isWritten = async () => (await agent.status()).ssd.queued_blocks === 0;
  const endMs = Date.now() + WRITTEN_MS;
  while (!(await isWritten())) {
    if (Date.now() > endMs) throw new Error("blocks are not written");
    await Bun.sleep(5);
  }
}
