import { type Random, randomBelow } from "../../../src/core/index.ts";
import { BLOCKS, isOneIn, PROMPT_BLOCKS } from "../content.ts";
import type { Oracle } from "../oracle.ts";
import { AgentDoor, type Receipt } from "./agent-door.ts";
import { CommandTally } from "./command-tally.ts";
import type { Deed, DeedRoom } from "./deed.ts";
import { DeedChooser } from "./deed-chooser.ts";
import { followSoft, isResident, judge, keysIn, revive, see } from "./hold-audit.ts";
import { UnpinDeed } from "./hold-deeds.ts";
import { HoldModel, type Span } from "./hold-model.ts";
import { HoldTimes } from "./hold-times.ts";
import { FlushDeed, PruneDeed } from "./removal-deeds.ts";

const OPERATORS = 2;
/** Commands that may be sent again although they were answered. */
const REMEMBERED = 200;
const LOOK_MS = 60;
const PAUSE_MS = 15;

/** A command as it was sent; `at`: when it was on its way, the last time. */
interface Sent {
  readonly deed: Deed;
  readonly body: { readonly id: string; readonly issuer: string };
  at: Span;
}

/** Sends commands to one run of the agent after the other, and knows what must come of them. */
export class Commander {
  readonly model = new HoldModel();
  readonly tally = new CommandTally();
  readonly room: DeedRoom;
  readonly choosers: readonly DeedChooser[];
  /** Without an answer. */
  readonly pending = new Set<Sent>();
  readonly answered: Sent[] = [];
  #serial = 0;

  constructor(oracle: Oracle, complain: (text: string) => void) {
    const { model } = this;
    this.room = { model, oracle, complain, softMayGo: false };
    this.choosers = Array.from(
      { length: OPERATORS },
      (_, i) => new DeedChooser(`op${i}`, this.room),
    );
  }

  /** The folders are empty. */
  nextLife(): void {
    this.model.clear();
    this.pending.clear();
    this.answered.length = 0;
  }

  /** Somebody tampered with a block's file. */
  damaged(id: number): void {
    this.model.unsure(id);
  }

  sentNow(deed: Deed): Sent {
    const id = `c${++this.#serial}`;
    const body = { ...deed.body, id, issuer: "crash" };
    return { deed, body, at: { lo: 0, hi: 0 } };
  }

  answeredNow(sent: Sent): void {
    this.answered.push(sent);
    if (this.answered.length > REMEMBERED) this.answered.shift();
  }

  open(url: string, readyMs: number, random: Random): CommandLife {
    this.model.restarted();
    return new CommandLife(this, url, readyMs, random);
  }
}

/** What is done to one run of the agent. */
export class CommandLife {
  readonly #commander: Commander;
  readonly #door: AgentDoor;
  readonly #times: HoldTimes;
  readonly #random: Random;
  #lastEvent = 0;

  constructor(commander: Commander, url: string, readyMs: number, random: Random) {
    const { model, tally, room } = commander;
    this.#commander = commander;
    this.#door = new AgentDoor(url);
    this.#times = new HoldTimes({ model, tally, complain: room.complain, readyMs });
    this.#random = random;
  }

  /** After a start: what was acknowledged holds, and of what was not, all of it or nothing. */
  async begin(): Promise<void> {
    const { model, room, pending } = this.#commander;
    const asked: { sent: Sent; isKnown: boolean }[] = [];
    for (const sent of [...pending]) asked.push({ sent, isKnown: await this.#settle(sent) });
    const sight = await see(this.#door);
    const isHeld = (key: string) => keysIn(sight.first).has(key);
    for (const { sent, isKnown } of asked) {
      if (!isKnown) sent.deed.cutOff?.(isHeld);
      // Not before: this run may be killed, too, and the next one asks again.
      pending.delete(sent);
    }
    revive(room, sight);
    const isHere = (id: number) => isResident(sight.tree.get(id));
    for (const id of model.restored(isHere, performance.now())) {
      room.complain(`block ${id} was under a hold and is not there after the start`);
    }
    followSoft(room, sight);
    judge(room, this.#times, sight);
    this.#commander.tally.audits++;
    for (const { sent, isKnown } of asked) await this.#again(sent, isKnown);
    const { answered } = this.#commander;
    for (let i = 0; i < 2 && answered.length > 0; i++) {
      await this.#repeat(answered[randomBelow(this.#random, answered.length)]!);
    }
    if (asked.length > 0) await this.audit();
  }

  /**
   * While no engine is at work: all that follows a block is gone then, as far as it hangs together.
   */
  async prune(): Promise<void> {
    const { tree } = await see(this.#door);
    const after = randomBelow(this.#random, BLOCKS);
    let reach = 1;
    while (isResident(tree.get(after + reach)) && (after + reach) % PROMPT_BLOCKS !== 0) reach++;
    const deed = new PruneDeed(this.#commander.room, after, reach);
    await this.#send(this.#commander.sentNow(deed), false);
  }

  /** While no engine is at work. */
  async audit(): Promise<void> {
    const { room, tally } = this.#commander;
    const sight = await see(this.#door);
    revive(room, sight);
    followSoft(room, sight);
    judge(room, this.#times, sight);
    tally.audits++;
  }

  /** Whether the command was carried out by the run it was sent to. */
  async #settle(sent: Sent): Promise<boolean> {
    const { pending, tally } = this.#commander;
    const { issuer, id } = sent.body;
    const receipt = await this.#door.receipt(issuer, id);
    if (receipt === null) return false;
    pending.delete(sent);
    tally.carriedOut++;
    sent.deed.done(receipt, sent.at, false);
    return true;
  }

  async #again(sent: Sent, isKnown: boolean): Promise<void> {
    if (isOneIn(this.#random, 2)) return;
    const { tally } = this.#commander;
    tally.retried++;
    if (isKnown) await this.#repeat(sent);
    else if (sent.deed.mayBeSent(performance.now())) await this.#send(sent, false);
  }

  /** Sends what was carried out before. */
  async #repeat({ deed, body }: Sent): Promise<void> {
    const receipt = await this.#door.command(body);
    if (isBusy(receipt)) return;
    this.#mustBeRepeated(receipt, deed, body.id);
  }

  #mustBeRepeated(receipt: Receipt, deed: Deed, id: string): void {
    const { tally, room } = this.#commander;
    if (receipt.duplicate === true) {
      tally.duplicates++;
      return;
    }
    tally.doubleEffects++;
    room.complain(`${deed.what} ${id} was carried out twice`);
  }

  /** False where the agent would not take it any more. */
  async #send(sent: Sent, twice: boolean): Promise<boolean> {
    const { model, pending, tally, room } = this.#commander;
    const { deed, body } = sent;
    const lo = performance.now();
    deed.sent?.(lo);
    model.enter(deed.keys);
    pending.add(sent);
    const tries = [this.#door.command(body), ...(twice ? [this.#door.command(body)] : [])];
    const settled = await Promise.allSettled(tries);
    const at = { lo, hi: performance.now() };
    const receipts = settled.flatMap((one) => (one.status === "fulfilled" ? [one.value] : []));
    if (receipts.length === 0) {
      sent.at = at;
      tally.unanswered++;
      throw (settled[0] as PromiseRejectedResult).reason;
    }
    pending.delete(sent);
    model.leave(deed.keys);
    if (receipts.some(isBusy)) return false;
    const [first, second] = receipts;
    const fresh = receipts.find(({ duplicate }) => duplicate !== true);
    if (!twice && first!.duplicate) room.complain(`${deed.what} ${body.id} was never sent before`);
    if (second !== undefined) {
      this.#mustBeRepeated(fresh === first ? second : first!, deed, body.id);
    }
    this.#answered(sent, fresh ?? first!, at);
    return true;
  }

  #answered(sent: Sent, receipt: Receipt, at: Span): void {
    const { tally, room } = this.#commander;
    const { deed, body } = sent;
    if (receipt.status === "rejected") {
      room.complain(`${deed.what} ${body.id} was refused: ${receipt.reason}`);
      return;
    }
    for (const { outcome, reason = "" } of receipt.blocks) {
      if (outcome === "rejected") tally.reject(reason);
    }
    tally.acknowledge(deed.what);
    deed.done(receipt, at, true);
    this.#commander.answeredNow(sent);
  }

  /** Commands without end, until `stop`. */
  async operate(stop: AbortSignal): Promise<void> {
    await Promise.all(this.#commander.choosers.map((chooser) => this.#loop(chooser, stop)));
  }

  async #loop(chooser: DeedChooser, stop: AbortSignal): Promise<void> {
    const random = this.#random;
    while (!stop.aborted) {
      const sent = this.#commander.sentNow(chooser.next(random));
      const isTaken = await this.#send(sent, isOneIn(random, 12));
      if (isTaken && isOneIn(random, 12)) await this.#repeat(sent);
      await Bun.sleep(randomBelow(random, PAUSE_MS));
    }
  }

  /** Watches holds end, until `stop`. */
  async watch(stop: AbortSignal): Promise<void> {
    const { model } = this.#commander;
    while (!stop.aborted) {
      for (const kind of ["pin", "lease"] as const) {
        const isUnchanged = model.unchangedSince();
        this.#times.look(await this.#door.list(kind), isUnchanged);
      }
      await this.events();
      await Bun.sleep(LOOK_MS);
    }
  }

  async events(): Promise<void> {
    const { tally, room } = this.#commander;
    const { events, next } = await this.#door.events(this.#lastEvent);
    this.#lastEvent = next;
    for (const event of events) {
      if (event.kind === "hold_expired") tally.purgedAtExpiry += event.purged ?? 0;
      if (event.kind !== "hold_relieved") continue;
      if (event.hold === "retain" && room.softMayGo) tally.relievedSoft++;
      else room.complain(`${event.hold} of ${event.owner} went for room: ${event.why}`);
    }
  }

  /** Three times what fits went through the agent. */
  flooded(): void {
    this.#commander.tally.floods++;
  }

  /** Takes pins off a block until there is none: as many as there must be. */
  async strip(): Promise<void> {
    const { model, room } = this.#commander;
    const lasting = model.all().filter(({ kind, ends }) => kind === "pin" && ends === null);
    const hold = lasting[randomBelow(this.#random, lasting.length)];
    const id = hold?.blocks.keys().next().value;
    if (hold === undefined || id === undefined) return;
    const count = model.countOf(`pin ${hold.owner}`, id);
    for (let i = 0; i <= count; i++) {
      const deed = new UnpinDeed(room, hold.owner, [id]);
      if (deed.mayBeSent(performance.now())) await this.#send(this.#commander.sentNow(deed), false);
    }
  }

  /** While no engine is at work: all that is not held is gone then. */
  async flush(): Promise<void> {
    await this.#send(this.#commander.sentNow(new FlushDeed(this.#commander.room, true)), false);
  }
}

/** The agent stops: nothing came of it. */
function isBusy({ status, reason = "" }: Receipt): boolean {
  return status === "rejected" && reason.startsWith("busy");
}
