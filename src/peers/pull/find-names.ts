import type { WorkerId } from "../../core/index.ts";
import type { PeerFound } from "../messages.ts";
import type { Peer } from "./peer.ts";
import type { Peers } from "./peers.ts";
import type { Questions } from "./questions.ts";

/** Names in one question, and peers that are asked. */
const NAMES_MAX = 256;
const PEERS_MAX = 16;

export type WorkersFound = readonly (PeerFound & { readonly worker: WorkerId })[];

export interface FindOptions {
  readonly deadlineMs: number;
  readonly signal: AbortSignal;
}

/**
 * What engines' names lead to elsewhere. Those who are said to know are asked first; others only
 * about what is left. What each says is kept apart: it is a hint until the block came.
 */
export async function findNames(
  { peers, questions }: { readonly peers: Peers; readonly questions: Questions },
  names: readonly Uint8Array[],
  sources: readonly WorkerId[],
  options: FindOptions,
): Promise<WorkersFound[]> {
  const found: (PeerFound & { worker: WorkerId })[][] = names.map(() => []);
  const ask = async (peer: Peer, places: readonly number[]) => {
    for (let from = 0; from < places.length && !options.signal.aborted; from += NAMES_MAX) {
      const some = places.slice(from, from + NAMES_MAX);
      const request = { op: "find" as const, names: some.map((place) => names[place]!) };
      const answer = await questions.ask(peer, request, options);
      if (answer?.op !== "find" || answer.found.length !== some.length) return;
      for (const [index, place] of some.entries())
        for (const one of answer.found[index]!) found[place]!.push({ ...one, worker: peer.worker });
    }
  };
  const named = [...new Set(sources)].flatMap((worker) => peers.get(worker) ?? []);
  const usable = named.filter((peer) => peer.breaker.allows).slice(0, PEERS_MAX);
  const all = names.map((_, place) => place);
  await Promise.all(usable.map((peer) => ask(peer, all)));
  const left = all.filter((place) => found[place]!.length === 0);
  if (left.length === 0) return found;
  const others = peers
    .reachable()
    .filter((peer) => !usable.includes(peer))
    .slice(0, PEERS_MAX);
  await Promise.all(others.map((peer) => ask(peer, left)));
  return found;
}
