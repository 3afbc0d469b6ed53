import {
  type BlockName,
  DIGEST_BYTES,
  LAYER_ALL,
  type NamespaceIndex,
  NO_NODE,
  type NodeId,
} from "../../core/index.ts";
import type { Native } from "../../native/index.ts";
import { createAddressBatch } from "../batches.ts";
import { Tier } from "../blocks/index.ts";
import type { Departure } from "../departures.ts";
import type { Slices } from "../lifecycle/context.ts";
import type { NameResolver } from "../lifecycle/resolve-names.ts";
import type { Namespaces } from "../namespaces.ts";
import type { TieredStore } from "../tiered-store.ts";
import type {
  ExplainQuery,
  Explanation,
  HitLabel,
  MissReason,
  PullInsight,
  TierLabel,
} from "./inspector.ts";

type Named = Extract<ExplainQuery, { names: unknown }>;
type Prompt = Exclude<ExplainQuery, Named>;
export type Hashing = Pick<Native, "prefixDigests" | "chainDigests" | "blake3Keyed">;

/** Number of blocks looked up together. */
const AT_ONCE = 256;
/**
 * Number of other namespaces, those described last, in which the first missing block is looked up.
 */
const NAMESPACES_TRIED = 64;
/** Bytes hashed before the event loop is yielded to. */
const BYTES_A_SLICE = 256 * 1024;

/** Availability of a block, as an engine's request would find it. */
interface Found {
  readonly namespace: NamespaceIndex;
  /** Fastest tier that has the block; null for a miss. */
  readonly tier: TierLabel | null;
  /** Reason for a miss; null if it is unknown. */
  readonly why: MissReason | null;
}

/** Dependencies of an explanation, which changes none of them. */
interface Explainer {
  readonly store: TieredStore;
  readonly namespaces: Namespaces;
  readonly native: Hashing;
  readonly names: NameResolver;
  readonly slices: Slices;
  readonly pulls: PullInsight | null;
}

/**
 * Returns the availability of a block now. Null for a node that is known only as a parent, since
 * its state is unknown.
 */
function look({ store }: Explainer, node: NodeId): Found | null {
  const { table, ssd } = store;
  if (node === NO_NODE || table.isGhost(node)) return null;
  const namespace = table.namespaceOf(node);
  const isOnGpu = table.isResident(node, Tier.gpu);
  const isOnSsd = table.isResident(node, Tier.ssd);
  const isServed = isOnSsd && ssd?.readable === true;
  const tier = table.isResident(node, Tier.ram) ? "ram" : isServed ? "ssd" : null;
  if (tier !== null) return { namespace, tier: isOnGpu ? "gpu" : tier, why: null };
  const miss = (why: MissReason) => ({ namespace, tier, why });
  if (table.isWriting(node)) return miss({ kind: "being_written" });
  if (isOnSsd) {
    const why = ssd?.snapshot().readsStopped ?? "no SSD tier";
    return miss({ kind: "ssd_unavailable", why });
  }
  if (isOnGpu) return miss({ kind: "gpu_only" });
  const key = new Uint32Array(8);
  table.readKey(node, key, 0);
  return { namespace, tier, why: departed(store, key, 0) };
}

function departed(store: TieredStore, words: Uint32Array, at: number): MissReason | null {
  const departure = store.departures.find(words, at);
  return departure === null ? null : { kind: "departed", departure };
}

/**
 * Explains which blocks of a prompt, given as tokens, are available. A block has a different digest
 * in each namespace, so the first missing block is also looked up in other namespaces.
 */
export async function explainPrompt(explainer: Explainer, prompt: Prompt): Promise<Explanation> {
  const { store, native, slices, namespaces } = explainer;
  const { tokens, namespace, blockTokens, layer } = prompt;
  const count = Math.floor(tokens.length / blockTokens);
  const digests = new Uint8Array(count * DIGEST_BYTES);
  if (count > 0) native.prefixDigests(namespace, tokens, blockTokens, digests);
  const batch = createAddressBatch(AT_ONCE);
  batch.layer = layer;
  const blocks: { name: string; tier: HitLabel | null }[] = [];
  let miss: { index: number; why: MissReason | null } | null = null;
  for (let from = 0; from < count; from += AT_ONCE) {
    batch.count = Math.min(AT_ONCE, count - from);
    const bytes = batch.count * DIGEST_BYTES;
    batch.digests.set(digests.subarray(from * DIGEST_BYTES, from * DIGEST_BYTES + bytes));
    store.deriveKeys(batch, false);
    for (let i = 0; i < batch.count; i++) {
      const found = look(explainer, store.table.find(batch.keys, i * 8));
      const at = (from + i) * DIGEST_BYTES;
      const name = digests.subarray(at, at + DIGEST_BYTES).toHex();
      blocks.push({ name, tier: found?.tier ?? null });
      if (miss !== null || blocks.at(-1)!.tier !== null) continue;
      miss = { index: from + i, why: found?.why ?? departed(store, batch.keys, i * 8) };
    }
    if (from + AT_ONCE < count) await slices.turn();
  }
  if (miss === null) return { leading: count, blocks, miss };
  const { index } = miss;
  const why = miss.why ?? (await elsewhere(explainer, prompt, index)) ?? { kind: "never_stored" };
  const wanted = blocks.slice(index).map((_, i) => ({
    digest: digests.subarray((index + i) * DIGEST_BYTES, (index + i + 1) * DIGEST_BYTES),
    layer,
  }));
  const peers = elsewhereThan(explainer, namespaces.find(namespace), wanted, blocks, index);
  return { leading: index, blocks, miss: { index, why }, ...peers };
}

/**
 * Returns another namespace under which the prompt up to the end of block `index` is stored, if
 * there is one.
 */
async function elsewhere(
  explainer: Explainer,
  { tokens, namespace, blockTokens, layer }: Prompt,
  index: number,
): Promise<MissReason | null> {
  const { store, namespaces, native, slices } = explainer;
  const bytes = (index + 1) * blockTokens * Uint32Array.BYTES_PER_ELEMENT;
  const prefix = new Uint8Array(tokens.buffer, tokens.byteOffset, bytes);
  const own = namespace.toHex();
  const others = namespaces.keys().filter((key) => key.toHex() !== own);
  const batch = createAddressBatch(1);
  batch.count = 1;
  batch.layer = layer;
  let hashed = 0;
  for (const key of others.slice(-NAMESPACES_TRIED)) {
    batch.digests.set(native.blake3Keyed(key, prefix));
    store.deriveKeys(batch, false);
    const found = look(explainer, store.table.find(batch.keys, 0));
    if (found !== null && found.tier !== null) {
      return { kind: "other_namespace", namespace: key.toHex() };
    }
    hashed += bytes;
    if (hashed < BYTES_A_SLICE) continue;
    hashed = 0;
    await slices.turn();
  }
  return null;
}

/**
 * Explains which blocks, given by name, are available. A name may resolve to blocks in several
 * namespaces; the result is the longest leading run of available blocks within one namespace.
 */
export async function explainNames(explainer: Explainer, { names }: Named): Promise<Explanation> {
  const found: (readonly Found[])[] = [];
  for (let from = 0; from < names.length; from += AT_ONCE) {
    if (from > 0) await explainer.slices.turn();
    const part = explainer.names.resolve(names.slice(from, from + AT_ONCE), true);
    for (let i = 0; i < part.count; i++) {
      const nodes = Array.from(part.nodes.subarray(part.from[i], part.from[i + 1])) as NodeId[];
      found.push(nodes.flatMap((node) => look(explainer, node) ?? []));
    }
  }
  const { leading, run } = leadingRun(found);
  const inRun = ({ namespace }: Found) => run === null || run.has(namespace);
  const blocks = names.map((name, i) => ({
    name: `${name.given}`,
    tier: bestTier(found[i].filter(inRun)) as HitLabel | null,
  }));
  if (leading === names.length) return { leading, blocks, miss: null };
  const why = whyMissing(explainer, names[leading], found[leading], inRun);
  const rest = names.slice(leading);
  // Engine hashes cannot be looked up in other namespaces, where the same hash may mean another
  // block.
  const known = rest.findIndex(({ kind }) => kind !== "key");
  const wanted = rest
    .slice(0, known < 0 ? rest.length : known)
    .flatMap((name) => (name.kind === "key" ? [{ digest: name.bytes, layer: name.layer }] : []));
  const namespace = theirNamespace(explainer, run);
  const peers = elsewhereThan(explainer, namespace, wanted, blocks, leading);
  return { leading, blocks, miss: { index: leading, why }, ...peers };
}

/** Returns the namespace of the leading run, or the only namespace; null if it is ambiguous. */
function theirNamespace(
  { namespaces }: Explainer,
  run: ReadonlySet<NamespaceIndex> | null,
): NamespaceIndex | null {
  const [first] = run ?? [];
  return first ?? (namespaces.size === 1 ? (1 as NamespaceIndex) : null);
}

/**
 * Returns the length of the longest leading run of available blocks, and the namespaces that have
 * all of it; null if the first block is a miss.
 */
function leadingRun(found: readonly (readonly Found[])[]): {
  leading: number;
  run: ReadonlySet<NamespaceIndex> | null;
} {
  let run: ReadonlySet<NamespaceIndex> | null = null;
  for (const [leading, nodes] of found.entries()) {
    const hits = new Set(nodes.filter(({ tier }) => tier !== null).map((one) => one.namespace));
    const both: ReadonlySet<NamespaceIndex> = run === null ? hits : hits.intersection(run);
    if (both.size === 0) return { leading, run };
    run = both;
  }
  return { leading: found.length, run };
}

const BEST: readonly TierLabel[] = ["gpu", "ram", "ssd"];

function bestTier(found: readonly Found[]): TierLabel | null {
  return BEST.find((label) => found.some(({ tier }) => tier === label)) ?? null;
}

function whyMissing(
  explainer: Explainer,
  name: BlockName,
  found: readonly Found[],
  inRun: (one: Found) => boolean,
): MissReason {
  const known = found.find((one) => inRun(one) && one.why !== null);
  if (known?.why) return known.why;
  const other = found.find((one) => !inRun(one) && one.tier !== null);
  const key = other === undefined ? null : explainer.namespaces.keyOf(other.namespace);
  if (key !== null) return { kind: "other_namespace", namespace: key.toHex() };
  return departedByName(explainer, name) ?? { kind: "never_stored" };
}

/**
 * Returns the removal record of a block given by name. Looks it up by alias first, then by digest:
 * the name itself, or the digest derived from it as a chain hash in each namespace.
 */
function departedByName(
  { store, namespaces, native }: Explainer,
  name: BlockName,
): MissReason | null {
  const departure = departureOfAlias(store, name);
  if (departure !== null) return { kind: "departed", departure };
  const keys = namespaces.keys().slice(-NAMESPACES_TRIED);
  const batch = createAddressBatch(1 + keys.length);
  batch.layer = name.kind === "key" ? name.layer : LAYER_ALL;
  const chainKey = name.kind === "key" ? name.bytes : u64Bytes(name);
  if (name.kind === "key") batch.digests.set(name.bytes);
  for (const [i, key] of keys.entries()) {
    const at = (i + 1) * DIGEST_BYTES;
    const digest = batch.digests.subarray(at, at + DIGEST_BYTES);
    native.chainDigests(key, chainKey, chainKey.length, digest);
  }
  batch.count = batch.capacity;
  store.deriveKeys(batch, false);
  for (let i = name.kind === "key" ? 0 : 1; i < batch.count; i++) {
    const why = departed(store, batch.keys, i * 8);
    if (why !== null) return why;
  }
  return null;
}

function departureOfAlias({ departures }: TieredStore, name: BlockName): Departure | null {
  if (name.kind === "hash") return departures.findAlias(name.lo, name.hi);
  if (name.layer !== LAYER_ALL) return null;
  const view = new DataView(name.bytes.buffer, name.bytes.byteOffset);
  return departures.findAlias(view.getUint32(0, true), view.getUint32(4, true));
}

function u64Bytes({ lo, hi }: { readonly lo: number; readonly hi: number }): Uint8Array {
  return new Uint8Array(Uint32Array.of(lo, hi).buffer);
}

/** Maximum number of blocks to explain, the same as in an engine's request. */
const ASKED_MAX = 4_096;
/** Maximum number of blocks for which the cost of a fetch is computed. */
const PRICED_MAX = 64;

interface Wanted {
  readonly digest: Uint8Array;
  readonly layer: number;
}

/**
 * Returns which part of a run of blocks a request would fetch from peers. Sets `blocks[from]` and
 * the following blocks to `peer` if no local tier has them.
 */
function elsewhereThan(
  { store, pulls }: { readonly store: TieredStore; readonly pulls: PullInsight | null },
  namespace: NamespaceIndex | null,
  wanted: readonly Wanted[],
  blocks: { tier: HitLabel | null }[],
  from: number,
): Pick<Explanation, "peers"> {
  const { peers } = store;
  if (peers === null || namespace === null || wanted.length === 0) return {};
  const layer = wanted[0].layer;
  const other = wanted.findIndex((one) => one.layer !== layer);
  const count = Math.min(ASKED_MAX, other < 0 ? wanted.length : other);
  const batch = createAddressBatch(count);
  batch.count = count;
  batch.layer = layer;
  for (let i = 0; i < count; i++) batch.digests.set(wanted[i].digest, i * DIGEST_BYTES);
  store.deriveKeys(batch, false);
  const promised = peers.promising(namespace, batch.keys, 0, count);
  for (let i = from; i < from + promised; i++) blocks[i].tier ??= "peer";
  const rest = wanted.slice(promised, promised + PRICED_MAX);
  const whyNot = rest.length === 0 ? null : (pulls?.whyNot(namespace, rest) ?? null);
  return { peers: { promised, whyNot } };
}
