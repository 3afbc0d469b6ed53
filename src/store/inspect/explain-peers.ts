import { DIGEST_BYTES, type NamespaceIndex } from "../../core/index.ts";
import { createAddressBatch } from "../batches.ts";
import type { TieredStore } from "../tiered-store.ts";
import type { Explanation, HitLabel, PullInsight } from "./inspector.ts";

/** Blocks asked about: no request asks for more at once. */
const ASKED_MAX = 4_096;
/** Blocks whose price is told. */
const PRICED_MAX = 64;

interface Wanted {
  readonly digest: Uint8Array;
  readonly layer: number;
}

/**
 * What a request would ask other hosts for, of these blocks in a row, the first of which is not
 * here: `blocks[from]` and what follows it become `peer` where nothing nearer has them.
 */
export function elsewhereThan(
  { store, pulls }: { readonly store: TieredStore; readonly pulls: PullInsight | null },
  namespace: NamespaceIndex | null,
  wanted: readonly Wanted[],
  blocks: { tier: HitLabel | null }[],
  from: number,
): Pick<Explanation, "peers"> {
  const { peers } = store;
  if (peers === null || namespace === null || wanted.length === 0) return {};
  const layer = wanted[0]!.layer;
  const other = wanted.findIndex((one) => one.layer !== layer);
  const count = Math.min(ASKED_MAX, other < 0 ? wanted.length : other);
  const batch = createAddressBatch(count);
  batch.count = count;
  batch.layer = layer;
  for (let i = 0; i < count; i++) batch.digests.set(wanted[i]!.digest, i * DIGEST_BYTES);
  store.deriveKeys(batch, false);
  const promised = peers.promising(namespace, batch.keys, 0, count);
  for (let i = from; i < from + promised; i++) blocks[i]!.tier ??= "peer";
  const rest = wanted.slice(promised, promised + PRICED_MAX);
  const whyNot = rest.length === 0 ? null : (pulls?.whyNot(namespace, rest) ?? null);
  return { peers: { promised, whyNot } };
}
