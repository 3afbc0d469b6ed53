import { type Clock, messageOf } from "../../../core/index.ts";
import {
  type Lent,
  NativeError,
  type RdmaAddress,
  type RdmaLink,
  type RdmaWindow,
} from "../../../native/index.ts";
import type { ServedBlock, TransportLog } from "../../transport.ts";
import { encodeRefusal } from "../../wire/index.ts";
import {
  BEFORE_HELLO,
  type ConnectionContext,
  type ControlChannel,
  pullOf,
  type RunningPull,
  type Sender,
  ServedItems,
  type ServedItemsOptions,
  type ServerPayload,
  UNEXPECTED_ANSWER,
} from "../control-channel/index.ts";
import { CONTROL_VERSION, type RdmaMessage } from "./control.ts";
import type { RailConnections } from "./ports.ts";
import type { RdmaLimits } from "./rdma-transport.ts";

interface RdmaServedPullOptions extends ServedItemsOptions {
  readonly channel: ControlChannel<RdmaMessage>;
  /** Connected. */
  readonly connections: readonly RdmaLink[];
  readonly clock: Clock;
  readonly limits: RdmaLimits;
  readonly log: TransportLog;
}

/** A block whose span is lent to the asker, or about to be. */
interface Loan {
  readonly connection: RdmaLink;
  readonly token: number;
  /** Its header and window were said. */
  isSaid: boolean;
  isReturning: boolean;
  /** When it is taken back whoever reads it. */
  limit: Disposable | null;
}

/** Said with a block that is not lent, since its header is none that was asked for. */
const NO_WINDOW: RdmaWindow = { address: 0n, key: 0 };

/**
 * One pull whose blocks are read by the asker's device. Each is lent alone, read-only, and comes
 * back when nobody can read it any more: after the asker said so, or its time is over.
 */
class RdmaServedPull implements RunningPull, Sender {
  readonly #options: RdmaServedPullOptions;
  readonly #items: ServedItems;
  readonly #loans = new Map<number, Loan>();
  #nextRail = 0;

  constructor(options: RdmaServedPullOptions) {
    this.#options = options;
    this.#items = new ServedItems(options, this);
  }

  run(): Promise<void> {
    return this.#items.run(Promise.resolve(true));
  }

  cancel(): void {
    this.#items.cancel();
  }

  refuse(_index: number, body: Uint8Array): void {
    const { id, channel } = this.#options;
    channel.send({ kind: "part", id, body });
  }

  send(index: number, block: ServedBlock, isAsked: boolean): void {
    const { id, channel, connections } = this.#options;
    const { header, offset } = block;
    const body = this.#items.frame(index, header);
    if (!isAsked) {
      channel.send({ kind: "lent", id, rail: 0, window: NO_WINDOW, body });
      this.#items.release(index);
      return;
    }
    const rail = this.#nextRail++ % connections.length;
    const connection = connections[rail]!;
    const { token, lent } = connection.lend(offset, header.bytes);
    const loan: Loan = { connection, token, isSaid: false, isReturning: false, limit: null };
    this.#loans.set(index, loan);
    void lent.then((outcome) => this.#wasLent(index, loan, outcome, { rail, body }));
  }

  #wasLent(
    index: number,
    loan: Loan,
    outcome: Lent,
    said: { readonly rail: number; readonly body: Uint8Array },
  ): void {
    const { id, channel, clock, limits } = this.#options;
    if (this.#loans.get(index) !== loan) return;
    if (!outcome.ok) {
      this.#loans.delete(index);
      this.#putOff(index, outcome.fault);
      return;
    }
    if (this.#items.isGivenUp) {
      this.#putOff(index, null);
      void this.#takeBack(index, loan);
      return;
    }
    loan.isSaid = true;
    loan.limit = clock.after(limits.lentMs, () => this.#revoke(index, loan));
    channel.send({ kind: "lent", id, window: outcome.window, ...said });
  }

  /** It is not lent: whoever asks again may have more luck. */
  #putOff(index: number, fault: string | null): void {
    const { limits, log, peer } = this.#options;
    if (fault === "unregistered") {
      log("error", "a block could not be lent to a device", { peer: peer.worker, why: fault });
    }
    const { retryAfterMs } = limits;
    this.refuse(index, encodeRefusal(index, { kind: "busy", retryAfterMs }));
    if (fault !== null) this.#items.release(index);
  }

  /** The asker does not read it any more. False: it was never lent to it. */
  taken(index: number): boolean {
    const loan = this.#loans.get(index);
    if (loan === undefined) return this.#items.isAnswered(index);
    if (!loan.isSaid) return false;
    void this.#takeBack(index, loan);
    return true;
  }

  /** The asker may be reading: it has a moment to stop, and to say so. */
  giveUp(indexes: readonly number[]): void {
    const { clock, limits } = this.#options;
    for (const index of indexes) {
      const loan = this.#loans.get(index);
      if (loan === undefined || !loan.isSaid || loan.isReturning) continue;
      loan.limit?.[Symbol.dispose]();
      loan.limit = clock.after(limits.graceMs, () => this.#revoke(index, loan));
    }
  }

  /** Takes it from whoever still reads it: his read fails, and his queue pair with it. */
  #revoke(index: number, loan: Loan): void {
    const { id, channel } = this.#options;
    channel.send({ kind: "lost", id, index });
    void this.#takeBack(index, loan);
  }

  async #takeBack(index: number, loan: Loan): Promise<void> {
    if (loan.isReturning) return;
    loan.isReturning = true;
    loan.limit?.[Symbol.dispose]();
    await loan.connection.takeBack(loan.token);
    this.#letGo(index, loan);
  }

  #letGo(index: number, loan: Loan): void {
    if (this.#loans.get(index) !== loan) return;
    this.#loans.delete(index);
    this.#items.release(index);
  }

  /** The queue pairs are gone: nobody reads anything any more. */
  linkEnded(): void {
    for (const [index, loan] of [...this.#loans]) {
      loan.limit?.[Symbol.dispose]();
      this.#letGo(index, loan);
    }
  }
}

type Hello = Extract<RdmaMessage, { kind: "hello" }>;
type Pull = Extract<RdmaMessage, { kind: "pull" }>;

/**
 * The queue pairs out of which a link's blocks are read, from the asker's hello on.
 *
 * States: waiting for the hello → made, waiting for the asker's → joined.
 */
export class RdmaServer implements ServerPayload<RdmaMessage> {
  readonly #room: ConnectionContext<RdmaMessage>;
  readonly #rails: RailConnections;
  readonly #limits: RdmaLimits;
  readonly #pulls = new Map<number, RdmaServedPull>();
  /** Null before the hello. */
  #connections: readonly RdmaLink[] | null = null;
  #isJoined = false;

  constructor(room: ConnectionContext<RdmaMessage>, rails: RailConnections, limits: RdmaLimits) {
    this.#room = room;
    this.#rails = rails;
    this.#limits = limits;
  }

  get isGreeted(): boolean {
    return this.#isJoined;
  }

  take(message: RdmaMessage): string | null {
    if (message.kind === "hello") return this.#greet(message);
    if (this.#connections === null) return BEFORE_HELLO;
    if (message.kind === "join") return this.#join(message.addresses, this.#connections);
    if (!this.#isJoined) return "it asked before it said which queue pairs it has";
    switch (message.kind) {
      case "pull":
        return this.#startPull(message, this.#connections);
      case "taken": {
        const pull = this.#pulls.get(message.id);
        if (pull === undefined) return null;
        return pull.taken(message.index) ? null : "it took what it was not lent";
      }
      default:
        return UNEXPECTED_ANSWER;
    }
  }

  #greet({ version, wanted, rails }: Hello): string | null {
    if (this.#connections !== null) return "it said hello twice";
    const { channel, host } = this.#room;
    try {
      const made = this.#rails.answer(rails, wanted);
      this.#connections = made.map(({ connection }) => connection);
      if (made.length === 0) {
        this.#room.end("refused", "no RDMA port here reaches one of its own");
        return null;
      }
      for (const { ended } of this.#connections) {
        void ended.then((fault) => this.#room.end("broken", `its queue pair ended: ${fault}`));
      }
      const pairs = made.map(({ rail, connection }) => ({ rail, address: connection.address }));
      // The other side's count of what is under way runs a little behind ours.
      const requests = Math.max(1, Math.floor(host.limits.connectionRequestsMax / 2));
      channel.send({
        ...{ kind: "welcome", version: Math.min(version, CONTROL_VERSION), requests, pairs },
      });
    } catch (thrown) {
      this.#refuse(thrown);
    }
    return null;
  }

  #join(addresses: readonly RdmaAddress[], connections: readonly RdmaLink[]): string | null {
    if (this.#isJoined) return "it joined twice";
    if (addresses.length !== connections.length)
      return "it joined with other rails than were chosen";
    try {
      for (const [index, connection] of connections.entries())
        connection.connect(addresses[index]!);
      this.#isJoined = true;
      this.#room.opened();
    } catch (thrown) {
      this.#refuse(thrown);
    }
    return null;
  }

  /** What the device refuses is none of the other side's faults. */
  #refuse(thrown: unknown): void {
    if (!(thrown instanceof NativeError)) throw thrown;
    const { host, peer } = this.#room;
    const fields = { peer: peer.worker, why: messageOf(thrown) };
    host.log("warn", "no queue pair could be made for a peer", fields);
    this.#room.end("refused", "no queue pair could be made for it");
  }

  #startPull({ id, body }: Pull, connections: readonly RdmaLink[]): string | null {
    const request = pullOf(body);
    if (typeof request === "string") return request;
    const { peer, channel, host } = this.#room;
    const { server, clock, log } = host;
    return this.#room.startPull(id, () => {
      const own = { id, request, peer, channel, connections, server, clock, log };
      const pull = new RdmaServedPull({ ...own, limits: this.#limits });
      this.#pulls.set(id, pull);
      const run = () => pull.run().finally(() => this.#pulls.delete(id));
      return { run, cancel: () => pull.cancel() };
    });
  }

  async close(): Promise<void> {
    await Promise.all(
      (this.#connections ?? []).map((connection) => connection[Symbol.asyncDispose]()),
    );
    for (const pull of [...this.#pulls.values()]) pull.linkEnded();
  }
}
