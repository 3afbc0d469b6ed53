import { messageOf } from "../../../core/index.ts";
import {
  type Cipher,
  type LaneSession,
  type Lanes,
  NativeError,
  type OpenLaneSession,
} from "../../../native/index.ts";
import type { ServedBlock } from "../../transport.ts";
import {
  BEFORE_HELLO,
  type ConnectionContext,
  type PullRequest,
  ServedPull,
  type ServerPayload,
  UNEXPECTED_ANSWER,
} from "../control-channel/index.ts";
import { CONTROL_VERSION, type StreamMessage } from "./control.ts";

/**
 * A block to be sent. `transfer`: its transfer number, or null until the client has announced
 * memory for it.
 */
interface PendingBlock {
  readonly block: ServedBlock;
  transfer: number | null;
}

/**
 * Server's side of one pull over data connections ("lanes"). Releases each block after its last
 * byte was sent, or, after a cancellation, when nothing reads it any more.
 */
export class StreamServedPull extends ServedPull<StreamMessage> {
  readonly #server: StreamServer;
  readonly #announced: Pick<Pull, "transfer" | "announced">;
  readonly #lent = new Map<number, PendingBlock>();
  #lanes: OpenLaneSession | null = null;

  constructor(
    server: StreamServer,
    request: PullRequest,
    { id, ...announced }: Pick<Pull, "id" | "transfer" | "announced">,
  ) {
    super(id, request, server.context);
    this.#server = server;
    this.#announced = announced;
  }

  protected async ready(): Promise<boolean> {
    try {
      // If the connection ends first, this rejects or never resolves.
      this.#lanes = await this.#server.session;
      return true;
    } catch {
      return false;
    }
  }

  protected giveUp(indexes: readonly number[]): void {
    for (const index of indexes) {
      const transfer = this.#lent.get(index)?.transfer ?? null;
      if (transfer === null) this.#lose(index);
      else this.#lanes?.cancel(transfer);
    }
  }

  /**
   * Handles the client's message that it has announced memory for a block whose header it received.
   * Returns false if the block was not waiting for this message.
   */
  go(index: number, transfer: number): boolean {
    const lent = this.#lent.get(index);
    if (lent === undefined) return this.isAnswered(index);
    if (lent.transfer !== null) return false;
    this.#carry(index, lent, transfer);
    return true;
  }

  protected refuse(body: Uint8Array): void {
    this.connection.channel.send({ kind: "part", id: this.id, sent: false, body });
  }

  protected send(index: number, block: ServedBlock, isRequested: boolean): void {
    const { announced, transfer } = this.#announced;
    const { header } = block;
    const body = this.frame(index, header);
    const lent: PendingBlock = { block, transfer: null };
    this.#lent.set(index, lent);
    const isExact = header.bytes === this.request.items[index].bytesMax;
    const sent = isRequested && isExact && index < announced;
    this.connection.channel.send({ kind: "part", id: this.id, sent, body });
    if (sent) this.#carry(index, lent, transfer + index);
  }

  #carry(index: number, lent: PendingBlock, transfer: number): void {
    lent.transfer = transfer;
    const { offset, header } = lent.block;
    this.#lanes!.send(transfer, offset, header.bytes)
      .then((sent) => sent.ok)
      .catch((thrown) => this.#unsent(thrown))
      .then((ok) => {
        if (!ok) return this.#lose(index);
        this.#lent.delete(index);
        this.release(index);
      });
  }

  #lose(index: number): void {
    this.#lent.delete(index);
    this.lose(index);
  }

  #unsent(thrown: unknown): false {
    if (thrown instanceof NativeError && thrown.status === "exists") {
      this.#server.context.end("protocol", "transfer number is already in use");
    } else this.connection.host.log("error", "sending a block failed", { why: messageOf(thrown) });
    return false;
  }
}

export interface StreamServerHost {
  readonly lanes: Lanes;
  readonly lanesPort: number;
  /** Ciphers that this host accepts. */
  readonly ciphers: readonly Cipher[];
  readonly lanesMax: number;
}

const NUMBERS_END = 2 ** 32;

type Hello = Extract<StreamMessage, { kind: "hello" }>;
type Pull = Extract<StreamMessage, { kind: "pull" }>;

type Context = ConnectionContext<StreamMessage, StreamServedPull>;

/** Server's payload part of a connection: data connections ("lanes") on which blocks are sent. */
export class StreamServer implements ServerPayload<StreamMessage, StreamServedPull> {
  readonly context: Context;
  readonly #host: StreamServerHost;
  /** Session of the lanes. Null before the hello. */
  session: Promise<OpenLaneSession> | null = null;
  #lanes: OpenLaneSession | null = null;

  constructor(context: Context, host: StreamServerHost) {
    this.context = context;
    this.#host = host;
  }

  get isGreeted(): boolean {
    return this.session !== null;
  }

  take(message: StreamMessage, pull: StreamServedPull | undefined): string | null {
    if (message.kind === "hello") return this.#greet(message);
    if (this.session === null) return BEFORE_HELLO;
    switch (message.kind) {
      case "pull":
        return this.#startPull(message);
      case "go":
        if (pull === undefined) return null;
        return pull.go(message.index, message.transfer) ? null : "go without a waiting block";
      default:
        return UNEXPECTED_ANSWER;
    }
  }

  #greet(hello: Hello): string | null {
    if (this.session !== null) return "second hello";
    const { ciphers, lanes, lanesPort, lanesMax } = this.#host;
    const { limits } = this.context.host;
    const cipher = hello.ciphers.find((theirs) => ciphers.includes(theirs));
    if (cipher === undefined) {
      this.context.end("refused", "no cipher is allowed on both sides");
      return null;
    }
    const session: LaneSession = {
      id: crypto.getRandomValues(new Uint8Array(16)),
      secret: crypto.getRandomValues(new Uint8Array(32)),
      cipher,
      lanes: Math.min(hello.lanes, lanesMax),
    };
    this.session = lanes.expect(session, limits.setUpMs);
    this.session.then(
      (connection) => this.#open(connection),
      (thrown) => this.context.end("broken", `lanes were not connected: ${messageOf(thrown)}`),
    );
    const version = Math.min(hello.version, CONTROL_VERSION);
    // The server counts a request as running for longer than the client does, so the client is
    // permitted only half of the limit.
    const requests = Math.max(1, Math.floor(limits.connectionRequestsMax / 2));
    this.context.channel.send({ kind: "welcome", version, port: lanesPort, requests, session });
    return null;
  }

  #open(connection: OpenLaneSession): void {
    this.context.opened();
    this.#lanes = connection;
    if (this.context.isOver) void connection[Symbol.asyncDispose]();
    else connection.ended.then((fault) => this.context.end("broken", `lanes ended: ${fault}`));
  }

  #startPull(message: Pull): string | null {
    const { id, transfer, announced, body } = message;
    return this.context.startPull(id, body, (request) => {
      const isAnnounced = announced <= request.items.length && transfer + announced <= NUMBERS_END;
      return isAnnounced ? new StreamServedPull(this, request, message) : "invalid announcement";
    });
  }

  async close(): Promise<void> {
    await this.#lanes?.[Symbol.asyncDispose]();
  }
}
