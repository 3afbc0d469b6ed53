import { assert, type NodeId } from "../../../src/core/index.ts";
import type {
  HoldRegistry,
  OwnerPinnedBytes,
  Pin,
  PinnedBytes,
  PinTable,
} from "../../../src/store/pins/index.ts";

interface Holders {
  pins: number;
  readonly names: Set<string>;
}

/** Recomputes every total and index from the pins. Throws INTERNAL with the first difference. */
export function verifyPins({ pinTable }: HoldRegistry): void {
  const { table } = pinTable;
  const nodes = new Map<NodeId, Holders>();
  const owners = new Map<string, Set<NodeId>>();
  const totals = { pin: [0, 0, 0], retain: [0, 0, 0], lease: [0, 0, 0] };
  let due = 0;
  for (const pin of pinTable.all()) {
    assert(pin.nodes.size > 0, "a pin has blocks");
    if (pin.kind === "lease" && !pin.ended)
      assert(pinTable.leases.get(pin.name!) === pin, "a lease is found by its name");
    if (pin.dueBootMs !== null) due++;
    else assert(pin.ended || pin.deadlineBootMs === null, "a pin with a deadline has a due time");
    const named = owners.get(pin.owner) ?? new Set();
    owners.set(pin.owner, named);
    for (const node of pin.nodes) note(nodes, pin, node);
    if (pin.kind !== "retain") for (const node of pin.nodes) named.add(node);
    const bytes = sumOf(pin.nodes, pinTable);
    assert(pin.bytes === bytes, "the bytes of a pin are the sum of its blocks");
    const of = totals[pin.kind];
    for (const [i, more] of [1, pin.nodes.size, bytes].entries()) of[i] = of[i]! + more;
  }
  for (const [kind, [holds, blocks, bytes]] of Object.entries(totals)) {
    const said = pinTable.totals[kind as Pin["kind"]];
    const isRight = said.holds === holds && said.blocks === blocks && said.bytes === bytes;
    assert(isRight, `the totals of ${kind}s match`);
  }
  assert(pinTable.due.size === due, "each due pin has one due time");
  assert(pinTable.index.owners === owners.size, "the owners are those with pins");
  for (const [owner, named] of owners)
    assert(
      pinTable.index.keptBy(owner)?.bytes ===
        sumKept(pinTable.index.keptBy(owner), named, pinTable.pinnedBytes),
      "the bytes of an owner are the sum of the blocks it keeps",
    );
  assert(pinTable.index.nodes === nodes.size, "the nodes are those with pins");
  for (const [node, { pins, names }] of nodes) {
    assert(table.pinsOf(node) === pins, "the block table counts each pin of a block");
    const found = pinTable.index
      .holdersOf(node, Infinity)
      .map((by) => nameOf(by.kind, by.owner!, by.name));
    const isRight = found.length === names.size && found.every((name) => names.has(name));
    assert(isRight, "each holder of a block is listed once");
  }
}

function note(nodes: Map<NodeId, Holders>, pin: Pin, node: NodeId): void {
  const holders = nodes.get(node) ?? { pins: 0, names: new Set() };
  nodes.set(node, holders);
  holders.pins++;
  holders.names.add(nameOf(pin.kind, pin.owner, pin.name ?? undefined));
}

function nameOf(kind: string, owner: string, name: string | undefined): string {
  return JSON.stringify([kind, owner, name ?? null]);
}

function sumOf(nodes: Iterable<NodeId>, pinTable: PinTable): number {
  let bytes = 0;
  for (const node of nodes) bytes += pinTable.pinnedBytes.bytesOf(node);
  return bytes;
}

/** The bytes that pins on these nodes keep. NaN if the number of blocks differs. */
function sumKept(
  kept: OwnerPinnedBytes | null,
  nodes: Iterable<NodeId>,
  pinnedBytes: PinnedBytes,
): number | undefined {
  if (kept === null) return undefined;
  const seen = new Set<NodeId>();
  let bytes = 0;
  for (const node of nodes) {
    for (let step = node; step !== 0 && !seen.has(step); ) {
      seen.add(step);
      bytes += pinnedBytes.bytesOf(step);
      step = kept.roots.has(step) ? (0 as NodeId) : pinnedBytes.parentOf(step);
    }
  }
  return seen.size === kept.size ? bytes : Number.NaN;
}
