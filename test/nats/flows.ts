import {
  type ControlClient,
  newCommandId,
  pause,
  pin,
  renewLease,
  retain,
  revokeLease,
  think,
  unpin,
  type WireCommand,
} from "../../src/control/client/index.ts";
import { REFUSALS, type Receipt, type RefusalCode } from "../../src/control/index.ts";
import { type Random, randomBelow } from "../../src/core/index.ts";
import type { Host, NamedBlock } from "./host.ts";
import type { Oracle, Sent } from "./oracle.ts";

/** Somebody who sends commands, one after the other about each thing. */
export interface Actor {
  /** Tells owners and leases apart. */
  readonly name: string;
  readonly client: ControlClient;
  readonly host: Host;
  readonly oracle: Oracle;
  readonly random: Random;
  readonly signal: AbortSignal;
  readonly tally: { commands: number; asked: number };
}

/** Short: what is not answered by then is sent again under its id, as a router would. */
const DEADLINE_MS = 3_000;
const PAUSE_MS = 40;

export const PROMPTS: readonly NamedBlock[] = named("prompt", 1_000, 8);
export const SESSIONS: readonly NamedBlock[] = named("session", 2_000, 8);
export const THOUGHTS: readonly NamedBlock[] = named("thought", 3_000, 2);
/** Two for each lease. */
const BLOCKS_OF_LEASE = 2;

function named(name: string, hash: number, count: number): NamedBlock[] {
  return Array.from({ length: count }, (_, at) => ({ name: `${name}-${at}`, hash: hash + at }));
}

/** Asks until it is answered by what will not change: the receipt, and what is known of the way. */
export async function settle(actor: Actor, given: WireCommand): Promise<[Receipt, Sent]> {
  const issuer = typeof given.issuer === "string" ? given.issuer : actor.name;
  const command = { ...given, issuer, id: newCommandId(actor.random) };
  const sent = { issuer, id: command.id, sentMs: performance.now() };
  actor.tally.commands++;
  for (;;) {
    actor.tally.asked++;
    const options = { deadlineMs: DEADLINE_MS };
    const result = await actor.client.send(actor.host.worker, command, options);
    if (actor.host.ended !== null) throw new Error(actor.host.ended);
    if (result.kind === "refused") throw new Error(result.why);
    if (result.kind !== "receipt") continue;
    const { receipt } = result;
    if (receipt.status !== "rejected") actor.oracle.answered(sent, receipt);
    else if (REFUSALS[wordOf(receipt) as RefusalCode]?.retry) continue;
    return [receipt, sent];
  }
}

function wordOf({ reason = "" }: Receipt): string {
  return reason.split(":")[0]!;
}

/** As `settle`, for what must be carried out. */
async function done(actor: Actor, command: WireCommand): Promise<[Receipt, Sent]> {
  const [receipt, sent] = await settle(actor, command);
  if (receipt.status === "rejected") {
    actor.oracle.find("odd", `${command.type} of ${actor.name} was refused: ${receipt.reason}`);
  }
  return [receipt, sent];
}

function rest({ random }: Actor): Promise<void> {
  return Bun.sleep(PAUSE_MS / 2 + randomBelow(random, PAUSE_MS));
}

/** Pins and unpins of one owner, several under way at once. */
export async function pinning(actor: Actor, owner: string): Promise<void> {
  const { random, oracle } = actor;
  while (!actor.signal.aborted) {
    const together = Array.from({ length: 1 + randomBelow(random, 3) }, async () => {
      const from = randomBelow(random, PROMPTS.length - 3);
      const some = PROMPTS.slice(from, from + 1 + randomBelow(random, 4)).map(({ hash }) => hash);
      if (randomBelow(random, 2) === 0) {
        oracle.pinned(owner, (await done(actor, pin(some, { owner })))[0]);
      } else oracle.unpinned(owner, (await done(actor, unpin(some, { owner })))[0]);
    });
    await Promise.all(together);
    await rest(actor);
  }
}

/** The same with numbers: late ones are refused, and those of an epoch that is over. */
export async function ordering(actor: Actor, owner: string): Promise<void> {
  const { oracle, random } = actor;
  const issuer = `${actor.name}-ordered`;
  const block = PROMPTS[0]!.hash;
  for (let seq = 1, epoch = 1; !actor.signal.aborted; seq++) {
    const numbers = { issuer, owner, epoch, seq };
    if (randomBelow(random, 2) === 0) {
      oracle.pinned(owner, (await done(actor, pin([block], numbers)))[0]);
    } else oracle.unpinned(owner, (await done(actor, unpin([block], numbers)))[0]);
    if (randomBelow(random, 20) === 0) {
      const [receipt] = await settle(actor, pin([block], { ...numbers, epoch: epoch - 1 }));
      if (wordOf(receipt) !== "fenced") {
        oracle.find("odd", `epoch ${epoch - 1} of ${issuer} after ${epoch}: ${receipt.status}`);
      }
      epoch++;
      seq = 0;
    }
    await rest(actor);
  }
}

export async function retaining(actor: Actor, owner: string): Promise<void> {
  const { oracle, random } = actor;
  const blocks = PROMPTS.slice(0, 3).map(({ hash }) => hash);
  while (!actor.signal.aborted) {
    const priority = randomBelow(random, 3) === 0 ? 0 : 1 + randomBelow(random, 99);
    await done(actor, retain(blocks, priority, { owner, retain_seconds: 86_400 }));
    oracle.retained.set(owner, priority);
    await rest(actor);
  }
}

/** Pauses, renews and revokes lease number `nth`; its blocks are pinned, so that they stay. */
export async function leasing(actor: Actor, nth: number): Promise<void> {
  const { oracle, random } = actor;
  const from = nth * BLOCKS_OF_LEASE;
  const blocks = SESSIONS.slice(from, from + BLOCKS_OF_LEASE).map(({ hash }) => hash);
  const name = `${actor.name}-lease-${nth}`;
  const owner = `${actor.name}-keeper-${nth}`;
  oracle.pinned(owner, (await done(actor, pin(blocks, { owner })))[0]);
  const granted = async (ttlSeconds: number, command: WireCommand) => {
    const [receipt, { sentMs }] = await done(actor, command);
    if (receipt.counts.missing > 0) oracle.find("lost", `${name} is not there to be renewed`);
    oracle.leases.set(name, { ttlSeconds, sentMs, answeredMs: performance.now() });
  };
  while (!actor.signal.aborted) {
    // Minutes apart: which command counted last is to be seen in what is left.
    const ttl = () => 600 * (2 + randomBelow(random, 100));
    const first = ttl();
    await granted(first, pause(blocks, name, first));
    for (let left = randomBelow(random, 3); left > 0; left--) {
      await rest(actor);
      const next = ttl();
      await granted(next, renewLease(name, next));
    }
    await rest(actor);
    if (actor.signal.aborted) return;
    const [receipt] = await done(actor, revokeLease(name));
    if (receipt.counts.missing > 0) oracle.find("lost", `${name} is not there to be revoked`);
    oracle.leases.set(name, null);
    await rest(actor);
  }
}

/** Marks a block and purges it; then it is stored anew, and nothing of that may be left. */
export async function thinking(actor: Actor, block: NamedBlock): Promise<void> {
  const { host, oracle } = actor;
  const { hash } = block;
  while (!actor.signal.aborted) {
    await host.store(block);
    oracle.marked.set(hash, false);
    await rest(actor);
    const [mark] = await done(actor, think([hash], true));
    const how = mark.blocks[0]?.outcome;
    if (how !== "done") oracle.find("double", `${block.name} stored anew, to be marked: ${how}`);
    oracle.marked.set(hash, true);
    await rest(actor);
    if (actor.signal.aborted) return;
    const [purge] = await done(actor, think([hash], false));
    const gone = purge.blocks[0]?.outcome;
    if (gone !== "done") oracle.find("odd", `${block.name}, marked, to be purged: ${gone}`);
    oracle.marked.delete(hash);
  }
}

/** What one client does, all at the same time. `nth`: which client. */
export function flowsOf(actor: Actor, nth: number): Promise<void>[] {
  const owner = (what: string) => `${actor.name}-${what}`;
  return [
    pinning(actor, owner("a")),
    pinning(actor, owner("b")),
    ordering(actor, owner("c")),
    retaining(actor, owner("d")),
    leasing(actor, nth * 2),
    leasing(actor, nth * 2 + 1),
    thinking(actor, THOUGHTS[nth]!),
  ];
}
