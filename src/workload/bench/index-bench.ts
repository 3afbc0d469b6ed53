import {
  assert,
  type NamespaceIndex,
  NO_NODE,
  type NodeId,
  type Random,
  randomBelow,
  seededRandom,
} from "../../core/index.ts";
import {
  type BlockSource,
  BlockTable,
  isRefusal,
  NO_SLOT,
  SlotAllocator,
  Tier,
} from "../../store/blocks/index.ts";
import { rounded } from "./measure.ts";

export interface IndexBenchOptions {
  /** Number of blocks in the table. Default 1,000,000; at least 1,000. */
  readonly blocks?: number;
  readonly seed?: number;
}

const NAMESPACE = 1 as NamespaceIndex;
const BLOCK_BYTES = 256 * 1024;
const CHAIN_MIN = 8;
const CHAIN_MAX = 250;
const BLOCKS_MIN = 1_000;
const MATCH_KEYS = 64;
const MATCHES = 4_000;

interface Bench {
  readonly random: Random;
  readonly table: BlockTable;
  readonly slots: SlotAllocator;
  readonly source: Chain;
}

/** A new chain of blocks, whose first block has an existing block as parent, or none. */
interface Chain extends BlockSource {
  readonly aliases: Uint32Array;
  count: number;
  rooted: boolean;
}

/**
 * Fills a table with chains of 8 to 250 blocks that share prefixes, each block with a random key, a
 * RAM slot and one 64-bit alias; then measures the table. Uses one thread, without input or output.
 */
export function benchIndex(options: IndexBenchOptions = {}) {
  const blocks = options.blocks ?? 1_000_000;
  assert(blocks >= BLOCKS_MIN, "an index bench has a thousand blocks at least");
  const random = seededRandom(options.seed ?? 1);
  const source = createChain();
  const warm = warmUp(source);
  const before = residentBytes();
  const bench: Bench = { random, source, ...createRecords(blocks, random) };
  const insertNs = insertMany(bench, blocks);
  touchAllColumns(bench.table);
  shuffleRecency(bench);
  const churned = Math.ceil(blocks / 4);
  const churnNs = churn(bench, churned);
  const bytesPerBlock = (residentBytes() - before) / blocks;
  assert(warm.table.nodeCount === 0, "the table of the warm-up is empty");
  const matchesNs = measureMatches(bench);
  shuffleRecency(bench);
  const evictNs = evictMany(bench, blocks);
  assert(bench.table.nodeCount === 0 && bench.slots.usedSlots === 0, "all blocks were evicted");
  return {
    blocks,
    /**
     * Growth of the process's resident memory per block, caused by the table, its indexes, aliases
     * and slots.
     */
    bytes_per_block: rounded(bytesPerBlock, 1),
    /** Median time of one call that finds 64 keys of one path, all resident, in microseconds. */
    match_64_p50_us: rounded(matchesNs[Math.floor(matchesNs.length / 2)] / 1000, 2),
    match_64_p99_us: rounded(matchesNs[Math.floor(matchesNs.length * 0.99)] / 1000, 2),
    /**
     * Blocks reserved, named, written and committed per second: all changes that the RAM tier makes
     * to these records.
     */
    insert_per_s: Math.round((blocks / insertNs) * 1e9),
    /**
     * Like `insert_per_s` in a full table: each block first evicts another and uses its records
     * again.
     */
    churn_per_s: Math.round((churned / churnNs) * 1e9),
    evict_per_s: Math.round((blocks / evictNs) * 1e9),
  };
}

function createRecords(blocks: number, random: Random) {
  const slots = new SlotAllocator({
    arenaBytes: blocks * BLOCK_BYTES,
    slotBytesMax: BLOCK_BYTES,
  });
  slots.addReady(slots.arenaBytes);
  return { slots, table: new BlockTable({ nodesMax: blocks, random }) };
}

function createChain(): Chain {
  return {
    layer: 0xffff_ffff,
    keys: new Uint32Array(CHAIN_MAX * 8),
    digests: new Uint8Array(CHAIN_MAX * 32),
    parentKeys: new Uint32Array(CHAIN_MAX * 8),
    bytes: new Uint32Array(CHAIN_MAX).fill(BLOCK_BYTES),
    aliases: new Uint32Array(CHAIN_MAX * 2),
    count: 0,
    rooted: false,
  };
}

/**
 * Warms up the JIT compiler, so that its memory and time are not counted. The caller must keep the
 * result alive: memory freed later would be subtracted from the memory of the measured table.
 */
function warmUp(source: Chain): Bench {
  const random = seededRandom(0);
  const bench: Bench = { random, source, ...createRecords(20_000, random) };
  insertMany(bench, 20_000);
  touchAllColumns(bench.table);
  measureMatches(bench);
  shuffleRecency(bench);
  churn(bench, 20_000);
  evictMany(bench, 20_000);
  return bench;
}

/**
 * Sets up a chain of `count` new blocks. Every second chain starts below a random existing block.
 */
function drawChain(bench: Bench, count: number): void {
  const { random, source, table } = bench;
  source.count = count;
  for (let i = 0; i < count * 8; i++) source.keys[i] = random.u32();
  for (let i = 0; i < count * 32; i++) source.digests[i] = i + count;
  for (let i = 0; i < count * 2; i++) source.aliases[i] = random.u32();
  source.parentKeys.set(source.keys.subarray(0, (count - 1) * 8), 8);
  source.rooted = table.nodeCount > 0 && random.u32() % 2 === 0;
  if (source.rooted) table.readKey(randomNode(bench), source.parentKeys, 0);
}

/** Returns a random block of the table. */
function randomNode(bench: Bench): NodeId {
  for (;;) {
    const node = (1 + randomBelow(bench.random, bench.table.nodesMax)) as NodeId;
    if (bench.table.namespaceOf(node) !== 0) return node;
  }
}

/**
 * Returns the length of the next chain. The first one is long, so that the smallest table has paths
 * to match.
 */
function chainLength(bench: Bench, left: number): number {
  if (bench.table.nodeCount === 0) return Math.min(left, CHAIN_MAX);
  return Math.min(left, CHAIN_MIN + randomBelow(bench.random, CHAIN_MAX - CHAIN_MIN + 1));
}

/** Inserts `blocks` blocks. Returns the nanoseconds taken, without the generation of the keys. */
function insertMany(bench: Bench, blocks: number): number {
  let elapsed = 0;
  for (let done = 0; done < blocks; done += bench.source.count) {
    drawChain(bench, chainLength(bench, blocks - done));
    const start = Bun.nanoseconds();
    const last = insertChain(bench);
    bench.table.touchPath(last);
    elapsed += Bun.nanoseconds() - start;
  }
  return elapsed;
}

function insertChain(bench: Bench): NodeId {
  const { table, slots, source } = bench;
  let last = NO_NODE;
  for (let i = 0; i < source.count; i++) {
    assert(table.find(source.keys, i * 8) === NO_NODE, "a random key is new");
    const node = table.insertWriting(source, i, NAMESPACE, i > 0 || source.rooted);
    assert(!isRefusal(node), "the table has room");
    table.lock(node);
    const slot = slots.reserve(source.bytes[i]);
    assert(slot !== NO_SLOT, "the arena has room");
    slots.setNode(slot, node);
    table.setSlot(node, slot, slots.generationOf(slot));
    table.addAlias(node, source.aliases[i * 2], source.aliases[i * 2 + 1]);
    last = node;
  }
  for (let i = 0; i < source.count; i++) {
    const node = table.find(source.keys, i * 8);
    table.setChecksum(node, i, i);
    table.markUsed(node, i);
    slots.publish(table.slotOf(node));
    table.addResidency(node, Tier.ram);
    table.endWrite(node);
    table.unlock(node);
  }
  return last;
}

/** Writes to the columns that plain inserts leave untouched, so that their memory counts too. */
function touchAllColumns(table: BlockTable): void {
  for (let node = 1 as NodeId; node <= table.nodesMax; node++) {
    table.addGpuHolder(node);
    table.removeGpuHolder(node);
    table.addResidency(node, Tier.ssd);
    table.pin(node);
    table.unpin(node);
    table.removeResidency(node, Tier.ssd);
  }
}

/**
 * Measures lookups and returns the nanoseconds of each in ascending order. The keys are gathered
 * before, and the caches filled with other data.
 */
function measureMatches(bench: Bench): Float64Array {
  const { table } = bench;
  const words = new Uint32Array(MATCHES * MATCH_KEYS * 8);
  const best = new Uint8Array(MATCH_KEYS);
  for (let match = 0; match < MATCHES; match++) {
    let node = randomNode(bench);
    while (!isDeep(table, node)) node = randomNode(bench);
    for (let i = MATCH_KEYS - 1; i >= 0; i--) {
      table.readKey(node, words, (match * MATCH_KEYS + i) * 8);
      node = table.parentOf(node);
    }
  }
  const keys = Array.from({ length: MATCHES }, (_, match) =>
    words.subarray(match * MATCH_KEYS * 8, (match + 1) * MATCH_KEYS * 8),
  );
  shuffleRecency(bench);
  const times = new Float64Array(MATCHES);
  for (let match = 0; match < MATCHES; match++) {
    const start = Bun.nanoseconds();
    const leading = table.matchLeading(keys[match], MATCH_KEYS, NAMESPACE, Tier.ram, best);
    times[match] = Bun.nanoseconds() - start;
    assert(leading === MATCH_KEYS, "all keys are resident");
  }
  return times.sort();
}

/** Marks random paths as used, so that the next evicted blocks are spread over all memory. */
function shuffleRecency(bench: Bench): void {
  for (let i = 0; i < bench.table.nodesMax / 50; i++) bench.table.touchPath(randomNode(bench));
}

function churn(bench: Bench, blocks: number): number {
  let elapsed = 0;
  for (let done = 0; done < blocks; done += bench.source.count) {
    const count = chainLength(bench, blocks - done);
    elapsed += evictMany(bench, count);
    drawChain(bench, count);
    const start = Bun.nanoseconds();
    bench.table.touchPath(insertChain(bench));
    elapsed += Bun.nanoseconds() - start;
  }
  return elapsed;
}

function evictMany(bench: Bench, blocks: number): number {
  const { table, slots } = bench;
  const start = Bun.nanoseconds();
  for (let i = 0; i < blocks; i++) {
    const node = table.oldest(Tier.ram);
    const slot = table.slotOf(node);
    table.removeResidency(node, Tier.ram);
    slots.release(slot);
  }
  return Bun.nanoseconds() - start;
}

function residentBytes(): number {
  Bun.gc(true);
  return process.memoryUsage.rss();
}

/** Returns whether the block has at least `MATCH_KEYS` ancestors. */
function isDeep(table: BlockTable, node: NodeId): boolean {
  let above = node;
  for (let depth = 0; depth < MATCH_KEYS && above !== NO_NODE; depth++)
    above = table.parentOf(above);
  return above !== NO_NODE;
}
