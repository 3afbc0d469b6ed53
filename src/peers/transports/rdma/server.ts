import { messageOf } from "../../../core/index.ts";
import {
  type Lent,
  NativeError,
  type RdmaAddress,
  type RdmaQueuePair,
  type RdmaWindow,
} from "../../../native/index.ts";
import type { ServedBlock } from "../../transport.ts";
import { encodeRefusal } from "../../wire/index.ts";
import {
  BEFORE_HELLO,
  type ConnectionContext,
  type PullRequest,
  ServedPull,
  type ServerPayload,
  UNEXPECTED_ANSWER,
} from "../control-channel/index.ts";
import { CONTROL_VERSION, type RdmaMessage } from "./control.ts";
import type { RailConnections } from "./ports.ts";
import type { RdmaLimits } from "./rdma-transport.ts";

/**
 * A block whose payload the client can read over RDMA, or will be able to read when `lend` has
 * resolved.
 */
interface Exposure {
  readonly connection: RdmaQueuePair;
  readonly token: number;
  /** True if the client was sent the header and the payload's address. */
  isSent: boolean;
  isReturning: boolean;
  /** Timer that ends the client's access. */
  limit: Disposable | null;
}

/**
 * Sent with the header of a block that the client cannot read, because the header differs from the
 * request.
 */
const NO_WINDOW: RdmaWindow = { address: 0n, key: 0 };

/**
 * Server's side of one pull over RDMA: the client's device reads the blocks. The client can read
 * only the payload of the block, and cannot write. A block is released when the client has reported
 * that it does not read it any more, or when its time limit has passed and its access was ended.
 */
export class RdmaServedPull extends ServedPull<RdmaMessage> {
  /** Connected queue pairs. */
  readonly #connections: readonly RdmaQueuePair[];
  readonly #limits: RdmaLimits;
  readonly #exposures = new Map<number, Exposure>();
  #nextRail = 0;

  constructor(
    id: number,
    request: PullRequest,
    context: Context,
    connections: readonly RdmaQueuePair[],
    limits: RdmaLimits,
  ) {
    super(id, request, context);
    this.#connections = connections;
    this.#limits = limits;
  }

  protected async ready(): Promise<true> {
    return true;
  }

  protected refuse(body: Uint8Array): void {
    this.connection.channel.send({ kind: "part", id: this.id, body });
  }

  protected send(index: number, block: ServedBlock, isRequested: boolean): void {
    const { id } = this;
    const { channel } = this.connection;
    const { header, offset } = block;
    const body = this.frame(index, header);
    if (!isRequested) {
      channel.send({ kind: "lent", id, rail: 0, window: NO_WINDOW, body });
      this.release(index);
      return;
    }
    const rail = this.#nextRail++ % this.#connections.length;
    const connection = this.#connections[rail];
    const { token, lent } = connection.lend(offset, header.bytes);
    const exposure: Exposure = {
      connection,
      token,
      isSent: false,
      isReturning: false,
      limit: null,
    };
    this.#exposures.set(index, exposure);
    void lent.then((outcome) => this.#wasExposed(index, exposure, outcome, { rail, body }));
  }

  #wasExposed(
    index: number,
    exposure: Exposure,
    outcome: Lent,
    sent: { readonly rail: number; readonly body: Uint8Array },
  ): void {
    const { channel, host } = this.connection;
    if (this.#exposures.get(index) !== exposure) return;
    if (!outcome.ok) {
      this.#exposures.delete(index);
      this.#refuseBusy(index, outcome.fault);
      return;
    }
    if (this.isGivenUp) {
      this.#refuseBusy(index, null);
      void this.#takeBack(index, exposure);
      return;
    }
    exposure.isSent = true;
    const { lentMs } = this.#limits;
    exposure.limit = host.clock.after(lentMs, () => this.#revoke(index, exposure));
    channel.send({ kind: "lent", id: this.id, window: outcome.window, ...sent });
  }

  /** Refuses the block as busy, so that the client may try again. */
  #refuseBusy(index: number, fault: string | null): void {
    const { host, peer } = this.connection;
    if (fault === "unregistered") {
      host.log("error", "exposing a block to an RDMA device failed", {
        peer: peer.worker,
        why: fault,
      });
    }
    const { retryAfterMs } = this.#limits;
    this.refuse(encodeRefusal(index, { kind: "busy", retryAfterMs }));
    if (fault !== null) this.release(index);
  }

  /**
   * Handles the client's message that it does not read the block any more. Returns false if the
   * block was never made readable.
   */
  taken(index: number): boolean {
    const exposure = this.#exposures.get(index);
    if (exposure === undefined) return this.isAnswered(index);
    if (!exposure.isSent) return false;
    void this.#takeBack(index, exposure);
    return true;
  }

  /**
   * Ends the client's access to these blocks after `graceMs`: it may be reading them, and has this
   * time to stop.
   */
  protected giveUp(indexes: readonly number[]): void {
    const { clock } = this.connection.host;
    for (const index of indexes) {
      const exposure = this.#exposures.get(index);
      if (exposure === undefined || !exposure.isSent || exposure.isReturning) continue;
      exposure.limit?.[Symbol.dispose]();
      exposure.limit = clock.after(this.#limits.graceMs, () => this.#revoke(index, exposure));
    }
  }

  /**
   * Ends the client's access to a block. If a read is running, it fails and its queue pair ends.
   */
  #revoke(index: number, exposure: Exposure): void {
    this.connection.channel.send({ kind: "lost", id: this.id, index });
    void this.#takeBack(index, exposure);
  }

  async #takeBack(index: number, exposure: Exposure): Promise<void> {
    if (exposure.isReturning) return;
    exposure.isReturning = true;
    exposure.limit?.[Symbol.dispose]();
    await exposure.connection.takeBack(exposure.token);
    this.#releaseBlock(index, exposure);
  }

  #releaseBlock(index: number, exposure: Exposure): void {
    if (this.#exposures.get(index) !== exposure) return;
    this.#exposures.delete(index);
    this.release(index);
  }

  /**
   * Releases all blocks after the queue pairs were closed, because the client cannot read them any
   * more.
   */
  override payloadClosed(): void {
    for (const [index, exposure] of [...this.#exposures]) {
      exposure.limit?.[Symbol.dispose]();
      this.#releaseBlock(index, exposure);
    }
  }
}

type Hello = Extract<RdmaMessage, { kind: "hello" }>;
type Context = ConnectionContext<RdmaMessage, RdmaServedPull>;

/**
 * Server's payload part of a connection: queue pairs through which the client reads blocks.
 *
 * States: waiting for the hello → queue pairs created, waiting for the client's → joined.
 */
export class RdmaServer implements ServerPayload<RdmaMessage, RdmaServedPull> {
  readonly #context: Context;
  readonly #rails: RailConnections;
  readonly #limits: RdmaLimits;
  /** Queue pairs of the connection. Null before the hello. */
  #connections: readonly RdmaQueuePair[] | null = null;
  #isJoined = false;

  constructor(context: Context, rails: RailConnections, limits: RdmaLimits) {
    this.#context = context;
    this.#rails = rails;
    this.#limits = limits;
  }

  get isGreeted(): boolean {
    return this.#isJoined;
  }

  take(message: RdmaMessage, pull: RdmaServedPull | undefined): string | null {
    const connections = this.#connections;
    if (message.kind === "hello") return this.#greet(message);
    if (connections === null) return BEFORE_HELLO;
    if (message.kind === "join") return this.#join(message.addresses, connections);
    if (!this.#isJoined) return "request before its queue pairs";
    switch (message.kind) {
      case "pull": {
        const { id, body } = message;
        const [context, limits] = [this.#context, this.#limits];
        return context.startPull(
          id,
          body,
          (request) => new RdmaServedPull(id, request, context, connections, limits),
        );
      }
      case "taken":
        if (pull === undefined) return null;
        return pull.taken(message.index) ? null : "returned a block that it was not given";
      default:
        return UNEXPECTED_ANSWER;
    }
  }

  #greet({ version, wanted, rails }: Hello): string | null {
    if (this.#connections !== null) return "second hello";
    const { channel, host } = this.#context;
    try {
      const made = this.#rails.answer(rails, wanted);
      this.#connections = made.map(({ connection }) => connection);
      if (made.length === 0) {
        this.#context.end("refused", "no RDMA port here reaches a port of the peer");
        return null;
      }
      for (const { ended } of this.#connections) {
        void ended.then((fault) => this.#context.end("broken", `queue pair failed: ${fault}`));
      }
      const pairs = made.map(({ rail, connection }) => ({ rail, address: connection.address }));
      // The server counts a request as running for longer than the client does, so the client is
      // permitted only half of the limit.
      const requests = Math.max(1, Math.floor(host.limits.connectionRequestsMax / 2));
      channel.send({
        kind: "welcome",
        version: Math.min(version, CONTROL_VERSION),
        requests,
        pairs,
      });
    } catch (thrown) {
      this.#refuse(thrown);
    }
    return null;
  }

  #join(addresses: readonly RdmaAddress[], connections: readonly RdmaQueuePair[]): string | null {
    if (this.#isJoined) return "second join";
    if (addresses.length !== connections.length) return "joined with other rails than chosen";
    try {
      for (const [index, connection] of connections.entries()) connection.connect(addresses[index]);
      this.#isJoined = true;
      this.#context.opened();
    } catch (thrown) {
      this.#refuse(thrown);
    }
    return null;
  }

  /**
   * Ends the connection after a device error, which is not reported as the peer's fault. Rethrows
   * other errors.
   */
  #refuse(thrown: unknown): void {
    if (!(thrown instanceof NativeError)) throw thrown;
    const { host, peer } = this.#context;
    const fields = { peer: peer.worker, why: messageOf(thrown) };
    host.log("warn", "creating queue pairs for a peer failed", fields);
    this.#context.end("refused", "no queue pair could be created");
  }

  async close(): Promise<void> {
    await Promise.all(
      (this.#connections ?? []).map((connection) => connection[Symbol.asyncDispose]()),
    );
  }
}
