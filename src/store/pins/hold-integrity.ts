import { assert, type NodeId } from "../../core/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import type { Hold } from "./hold.ts";
import type { HoldBook } from "./hold-book.ts";

interface Holders {
  pins: number;
  readonly names: Set<string>;
}

/** Checks every sum and index of the holds against the holds; INTERNAL names the first broken. */
export function verifyHolds(book: HoldBook, table: BlockTable): void {
  const nodes = new Map<NodeId, Holders>();
  const owners = new Map<string, Set<NodeId>>();
  const totals = { pin: [0, 0, 0], retain: [0, 0, 0], lease: [0, 0, 0] };
  let due = 0;
  for (const hold of book.holds()) {
    assert(hold.nodes.size > 0, "a hold has blocks");
    if (hold.kind === "lease" && !hold.ended)
      assert(book.leases.get(hold.name!) === hold, "a lease has its name");
    if (hold.dueBootMs !== null) due++;
    else assert(hold.ended || hold.deadlineBootMs === null, "what ends is looked at");
    const named = owners.get(hold.owner) ?? new Set();
    owners.set(hold.owner, named);
    for (const node of hold.nodes) note(nodes, hold, node);
    if (hold.kind !== "retain") for (const node of hold.nodes) named.add(node);
    const bytes = sumOf(hold.nodes, book);
    assert(hold.bytes === bytes, "a hold is as long as its blocks");
    const of = totals[hold.kind];
    for (const [i, more] of [1, hold.nodes.size, bytes].entries()) of[i] = of[i]! + more;
  }
  for (const [kind, [holds, blocks, bytes]] of Object.entries(totals)) {
    const said = book.totals[kind as Hold["kind"]];
    const isRight = said.holds === holds && said.blocks === blocks && said.bytes === bytes;
    assert(isRight, `the sums of ${kind}s are right`);
  }
  assert(book.due.size === due, "as many times as holds that have one");
  assert(book.index.owners === owners.size, "an owner is known while it has holds");
  for (const [owner, named] of owners)
    assert(
      book.index.keptBy(owner)?.bytes === book.index.keptBy(owner)?.sumOf(named, book.tally),
      "an owner's bytes are those of what it keeps",
    );
  assert(book.index.nodes === nodes.size, "a node is known while it is held");
  for (const [node, { pins, names }] of nodes) {
    assert(table.pinsOf(node) === pins, "the table counts each hold on a block");
    const found = book.index
      .holdersOf(node, Infinity)
      .map((by) => nameOf(by.kind, by.owner!, by.name));
    const isRight = found.length === names.size && found.every((name) => names.has(name));
    assert(isRight, "each holder of a block is known once");
  }
}

function note(nodes: Map<NodeId, Holders>, hold: Hold, node: NodeId): void {
  const holders = nodes.get(node) ?? { pins: 0, names: new Set() };
  nodes.set(node, holders);
  holders.pins++;
  holders.names.add(nameOf(hold.kind, hold.owner, hold.name ?? undefined));
}

function nameOf(kind: string, owner: string, name: string | undefined): string {
  return JSON.stringify([kind, owner, name ?? null]);
}

function sumOf(nodes: Iterable<NodeId>, book: HoldBook): number {
  let bytes = 0;
  for (const node of nodes) bytes += book.tally.bytesOf(node);
  return bytes;
}
