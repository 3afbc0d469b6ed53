import type { PinKind } from "../../../src/store/pins/index.ts";
import { BLOCKS, digestOf } from "../content.ts";
import type { AgentDoor, Listing, TreeEntry } from "./agent-door.ts";
import type { DeedRoom } from "./deed.ts";
import { keyOf, type ModelHold } from "./hold-model.ts";
import type { HoldTimes } from "./hold-times.ts";

const KINDS: readonly PinKind[] = ["pin", "retain", "lease"];
const idsByDigest = new Map(
  Array.from({ length: BLOCKS }, (_, id) => [digestOf(id).toHex(), id] as const),
);

/** What an agent shows of its holds while nobody sends commands. */
export interface Sight {
  readonly first: readonly Listing[];
  readonly tree: ReadonlyMap<number, TreeEntry>;
  readonly second: readonly Listing[];
}

export async function see(door: AgentDoor): Promise<Sight> {
  const lists = async () => {
    const found: Listing[] = [];
    for (const kind of KINDS) found.push(await door.list(kind));
    return found;
  };
  const first = await lists();
  const tree = new Map<number, TreeEntry>();
  for (const entry of await door.tree()) {
    const id = entry.digest === null ? undefined : idsByDigest.get(entry.digest);
    if (id !== undefined) tree.set(id, entry);
  }
  return { first, tree, second: await lists() };
}

/** Whether the block is on this host. */
export function isResident(entry: TreeEntry | undefined): boolean {
  return entry?.tiers.some((tier) => tier === "ram" || tier === "ssd") ?? false;
}

/** Says what of all this is not as it must be. The model then has what is. */
export function judge(room: DeedRoom, times: HoldTimes, sight: Sight): void {
  const { first, second } = sight;
  for (const listing of first) times.look(listing);
  for (const listing of second) judgeLasting(room, listing);
  const [before, after] = [keysIn(first), keysIn(second)];
  const isThere = ({ kind, owner, name }: ModelHold) => {
    const key = keyOf(kind, owner, name);
    if (before.has(key) && after.has(key)) return true;
    return before.has(key) || after.has(key) ? null : false;
  };
  for (let id = 0; id < BLOCKS; id++) judgeBlock(room, id, sight.tree.get(id), isThere);
  // What ended while the tree was read is still counted there.
  for (const listing of second) times.look(listing);
}

/** What was lost at the start and has come back is held as before. */
export function revive({ model }: DeedRoom, { tree }: Sight): void {
  model.revive((id, key) => {
    const entry = tree.get(id);
    return isResident(entry) && holdersIn(entry!).has(key);
  });
}

/** Soft pins that had to go are no complaint where there is little room: the model follows. */
export function followSoft({ model, softMayGo }: DeedRoom, { tree }: Sight): void {
  if (!softMayGo) return;
  for (const hold of model.all()) {
    if (hold.kind !== "retain") continue;
    for (const id of [...hold.blocks.keys()]) {
      const entry = tree.get(id);
      const holds = entry?.held_by.some(
        ({ kind, owner }) => kind === "retain" && owner === hold.owner,
      );
      if (entry === undefined || !holds) model.letGo(`retain ${hold.owner}`, id);
    }
  }
}

/** Of holds that end. */
export function keysIn(listings: readonly Listing[]): Set<string> {
  const timed = listings
    .flatMap(({ holds }) => holds)
    .filter((hold) => hold.remaining_seconds !== null);
  return new Set(timed.map(({ kind, owner, name }) => keyOf(kind, owner, name)));
}

/** Holds without an end cannot be told apart in a list; their blocks together can be counted. */
function judgeLasting({ model, complain, softMayGo }: DeedRoom, { kind, holds }: Listing): void {
  const sums = new Map<string, number>();
  for (const hold of model.all()) {
    const key = keyOf(hold.kind, hold.owner, hold.name);
    if (hold.kind === kind && hold.ends === null) sums.set(key, model.lastingBlocks(key));
  }
  for (const { owner, name, blocks, remaining_seconds } of holds) {
    const key = keyOf(kind, owner, name);
    if (remaining_seconds === null) sums.set(key, (sums.get(key) ?? 0) - blocks);
  }
  if (kind === "retain" && softMayGo) return;
  for (const [key, sum] of sums) {
    if (sum <= 0 && -sum <= model.lapsedBlocks(key)) continue;
    complain(`${key} holds ${Math.abs(sum)} blocks ${sum > 0 ? "less" : "more"} than it must`);
  }
}

/** Who holds a block. */
function holdersIn({ held_by }: TreeEntry): Set<string> {
  const holds = held_by.filter(({ kind }) => (KINDS as readonly string[]).includes(kind));
  return new Set(
    holds.map(({ kind, owner = "", name = null }) => keyOf(kind as PinKind, owner, name)),
  );
}

function judgeBlock(
  { model, complain }: DeedRoom,
  id: number,
  entry: TreeEntry | undefined,
  isThere: (hold: ModelHold) => boolean | null,
): void {
  if (!isResident(entry)) {
    if (model.isPromised(id, performance.now())) {
      complain(`block ${id} is held and not there`);
      model.unsure(id);
    }
    return;
  }
  const { min, max, parties } = model.countsOf(id, isThere);
  const { pins } = entry!;
  if (pins < min || pins > max) {
    const words = min === max ? `${min}` : `${min} to ${max}`;
    complain(`block ${id} has ${pins} pins, not ${words} (${[...parties.keys()].join(", ")})`);
  }
  const there = holdersIn(entry!);
  for (const key of there) {
    if (!parties.has(key)) complain(`block ${id} is held by ${key}, who must not`);
  }
  for (const [key, isSure] of parties) {
    if (isSure && !there.has(key)) complain(`block ${id} is not held by ${key}`);
  }
}
