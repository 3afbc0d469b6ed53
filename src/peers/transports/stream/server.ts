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
  type ControlChannel,
  type PullRequest,
  pullOf,
  type RunningPull,
  type Sender,
  ServedItems,
  type ServedItemsOptions,
  type ServerPayload,
  UNEXPECTED_ANSWER,
} from "../control-channel/index.ts";
import { CONTROL_VERSION, type StreamMessage } from "./control.ts";

interface ServedPullOptions extends ServedItemsOptions {
  /** Number of the first announced transfer. */
  readonly transfer: number;
  readonly announced: number;
  readonly request: PullRequest;
  readonly channel: ControlChannel<StreamMessage>;
  /** Rejects, or never resolves, if the connection ends first. */
  readonly lanes: Promise<OpenLaneSession>;
  /** The client violated the protocol: ends its connection. */
  onWrong(why: string): void;
}

/** A block to send: its transfer number; null: it waits for the client's place. */
interface PendingBlock {
  readonly block: ServedBlock;
  transfer: number | null;
}

/**
 * One pull whose blocks are sent over lanes. Each block is released after its last byte was sent,
 * or after a cancellation when nothing reads it any more.
 */
class ServedPull implements RunningPull, Sender {
  readonly #options: ServedPullOptions;
  readonly #items: ServedItems;
  readonly #lent = new Map<number, PendingBlock>();
  #lanes: OpenLaneSession | null = null;

  constructor(options: ServedPullOptions) {
    this.#options = options;
    this.#items = new ServedItems(options, this);
  }

  run(): Promise<void> {
    const ready = this.#options.lanes.then(
      (lanes) => {
        this.#lanes = lanes;
        return true;
      },
      () => false,
    );
    return this.#items.run(ready);
  }

  cancel(): void {
    this.#items.cancel();
  }

  giveUp(indexes: readonly number[]): void {
    for (const index of indexes) {
      const transfer = this.#lent.get(index)?.transfer ?? null;
      if (transfer === null) this.#lose(index);
      else this.#lanes?.cancel(transfer);
    }
  }

  /**
   * The client announced the place of a block whose header was sent. False: the block was not
   * waiting.
   */
  go(index: number, transfer: number): boolean {
    const lent = this.#lent.get(index);
    if (lent === undefined) return this.#items.isAnswered(index);
    if (lent.transfer !== null) return false;
    this.#carry(index, lent, transfer);
    return true;
  }

  refuse(_index: number, body: Uint8Array): void {
    const { id, channel } = this.#options;
    channel.send({ kind: "part", id, sent: false, body });
  }

  send(index: number, block: ServedBlock, isRequested: boolean): void {
    const { id, channel, request, announced, transfer } = this.#options;
    const { header } = block;
    const body = this.#items.frame(index, header);
    const lent: PendingBlock = { block, transfer: null };
    this.#lent.set(index, lent);
    const isExact = header.bytes === request.items[index]!.bytesMax;
    const sent = isRequested && isExact && index < announced;
    channel.send({ kind: "part", id, sent, body });
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
        this.#items.release(index);
      });
  }

  #lose(index: number): void {
    this.#lent.delete(index);
    this.#items.lose(index);
  }

  #unsent(thrown: unknown): false {
    const { log, onWrong } = this.#options;
    if (thrown instanceof NativeError && thrown.status === "exists") {
      onWrong("transfer number is already in use");
    } else log("error", "sending a block failed", { why: messageOf(thrown) });
    return false;
  }
}

export interface StreamServerHost {
  readonly lanes: Lanes;
  readonly lanesPort: number;
  /** The ciphers that this side allows. */
  readonly ciphers: readonly Cipher[];
  readonly lanesMax: number;
}

const NUMBERS_END = 2 ** 32;

type Hello = Extract<StreamMessage, { kind: "hello" }>;
type Pull = Extract<StreamMessage, { kind: "pull" }>;

/** The lanes that send a connection's blocks. */
export class StreamServer implements ServerPayload<StreamMessage> {
  readonly #room: ConnectionContext<StreamMessage>;
  readonly #host: StreamServerHost;
  readonly #pulls = new Map<number, ServedPull>();
  #session: Promise<OpenLaneSession> | null = null;
  #lanes: OpenLaneSession | null = null;

  constructor(room: ConnectionContext<StreamMessage>, host: StreamServerHost) {
    this.#room = room;
    this.#host = host;
  }

  get isGreeted(): boolean {
    return this.#session !== null;
  }

  take(message: StreamMessage): string | null {
    if (message.kind === "hello") return this.#greet(message);
    const lanes = this.#session;
    if (lanes === null) return BEFORE_HELLO;
    switch (message.kind) {
      case "pull":
        return this.#startPull(message, lanes);
      case "go": {
        const pull = this.#pulls.get(message.id);
        if (pull === undefined) return null;
        return pull.go(message.index, message.transfer) ? null : "go without a waiting block";
      }
      default:
        return UNEXPECTED_ANSWER;
    }
  }

  #greet(hello: Hello): string | null {
    if (this.#session !== null) return "second hello";
    const { ciphers, lanes, lanesPort, lanesMax } = this.#host;
    const { limits } = this.#room.host;
    const cipher = hello.ciphers.find((theirs) => ciphers.includes(theirs));
    if (cipher === undefined) {
      this.#room.end("refused", "no cipher is allowed on both sides");
      return null;
    }
    const session: LaneSession = {
      id: crypto.getRandomValues(new Uint8Array(16)),
      secret: crypto.getRandomValues(new Uint8Array(32)),
      cipher,
      lanes: Math.min(hello.lanes, lanesMax),
    };
    this.#session = lanes.expect(session, limits.setUpMs);
    this.#session.then(
      (connection) => this.#open(connection),
      (thrown) => this.#room.end("broken", `lanes were not connected: ${messageOf(thrown)}`),
    );
    const version = Math.min(hello.version, CONTROL_VERSION);
    // The peer's count of running requests lags behind ours.
    const requests = Math.max(1, Math.floor(limits.connectionRequestsMax / 2));
    this.#room.channel.send({ kind: "welcome", version, port: lanesPort, requests, session });
    return null;
  }

  #open(connection: OpenLaneSession): void {
    this.#room.opened();
    this.#lanes = connection;
    if (this.#room.isOver) void connection[Symbol.asyncDispose]();
    else connection.ended.then((fault) => this.#room.end("broken", `lanes ended: ${fault}`));
  }

  #startPull(message: Pull, lanes: Promise<OpenLaneSession>): string | null {
    const { id, transfer, announced } = message;
    const request = pullOf(message.body);
    if (typeof request === "string") return request;
    const isAnnounced = announced <= request.items.length && transfer + announced <= NUMBERS_END;
    if (!isAnnounced) return "invalid announcement";
    const { peer, channel, host } = this.#room;
    const { server, clock, limits, log } = host;
    return this.#room.startPull(id, () => {
      const pull = new ServedPull({
        id,
        transfer,
        announced,
        request,
        peer,
        channel,
        lanes,
        server,
        clock,
        limits,
        log,
        onWrong: (why) => this.#room.end("protocol", why),
      });
      this.#pulls.set(id, pull);
      const run = () => pull.run().finally(() => this.#pulls.delete(id));
      return { run, cancel: () => pull.cancel() };
    });
  }

  async close(): Promise<void> {
    await this.#lanes?.[Symbol.asyncDispose]();
  }
}
