import type { Bus, BusMessage } from "../../../bus/index.ts";
import { decodeBody, encodeBody, JSON_TYPE, MSGPACK_TYPE } from "../../../control/index.ts";
import { HearthError, sleep, systemClock } from "../../../core/index.ts";

export type Encoding = "json" | "msgpack";

export interface CommandLoadOptions {
  readonly bus: Bus;
  readonly workerId: string;
  /** Commands on their way at once, each of a group of blocks nobody else uses meanwhile. */
  readonly inFlight: number;
  /** The blocks' hashes; as many groups as `inFlight`, or more. */
  readonly groups: readonly (readonly bigint[])[];
  readonly encoding: Encoding;
  /** What receipts must say of themselves. */
  readonly durable: boolean;
}

/** One stretch of load. */
export interface LoadFigures {
  readonly receipts: number;
  readonly seconds: number;
  /** From the command's bytes until its receipt had been read and checked. */
  readonly ns: readonly number[];
}

export const OWNERS = 8;
const ISSUERS = 8;
const SILENCE_MS = 30_000;
const INBOX_DIGITS = 8;
const HEADERS = {
  json: { "Content-Type": JSON_TYPE },
  msgpack: { "Content-Type": MSGPACK_TYPE },
};
const utf8 = new TextEncoder();
const LIMITS = { bytesMax: 2 ** 20, depthMax: 16, itemsMax: 65_536, valuesMax: 2 ** 24 };

/** Pins its own groups for one owner after the other, and lets the oldest of its pins go. */
interface Lane {
  readonly groups: readonly number[];
  /** Its pins stand at so many places from `first` on, of one for each group and owner. */
  first: number;
  standing: number;
}

/**
 * Sends commands that pin or unpin a group of blocks and waits for every receipt: each must say
 * that every block of it is done. Once begun, half of all pins that there can be stand.
 */
export class CommandLoad implements Disposable {
  readonly #options: CommandLoadOptions;
  readonly #lanes: Lane[];
  readonly #lists: readonly (string | readonly bigint[])[];
  readonly #inbox: string;
  readonly #subscription: Disposable;
  readonly #waiting = new Map<string, (message: BusMessage) => void>();
  #sent = 0;

  constructor(options: CommandLoadOptions) {
    const { bus, inFlight, groups, encoding } = options;
    this.#options = options;
    this.#lists = encoding === "json" ? groups.map((group) => group.join(",")) : groups;
    this.#lanes = Array.from({ length: inFlight }, (_, lane) => {
      const own = groups.map((_, group) => group).filter((group) => group % inFlight === lane);
      return { groups: own, first: 0, standing: 0 };
    });
    this.#inbox = `_INBOX.${crypto.getRandomValues(new Uint8Array(INBOX_DIGITS)).toHex()}`;
    const subscription = bus.subscribe(`${this.#inbox}.*`, (message) => {
      this.#waiting.get(message.subject)?.(message);
    });
    this.#subscription = { [Symbol.dispose]: () => subscription.unsubscribe() };
  }

  /** Loads the agent for so long; the receipts of all that was sent are there when it resolves. */
  async run(ms: number, signal: AbortSignal): Promise<LoadFigures> {
    const ns: number[] = [];
    const startMs = systemClock.monotonicMs();
    const endMs = startMs + ms;
    const lanes = this.#lanes.map(async (lane, number) => {
      while (systemClock.monotonicMs() < endMs && !signal.aborted) {
        ns.push(await this.#step(lane, number));
      }
    });
    const silence = sleep(systemClock, ms + SILENCE_MS, signal).then(() => {
      throw new HearthError("DEADLINE", `${this.#waiting.size} commands were not answered`);
    });
    silence.catch(() => undefined);
    await Promise.race([Promise.all(lanes), silence]);
    return { receipts: ns.length, seconds: (systemClock.monotonicMs() - startMs) / 1_000, ns };
  }

  /** What stands by what was answered: pins of each owner, in its order. */
  standing(): number[] {
    const pins = new Array<number>(OWNERS).fill(0);
    for (const { first, standing } of this.#lanes) {
      for (let at = first; at < first + standing; at++) pins[at % OWNERS]!++;
    }
    return pins;
  }

  [Symbol.dispose](): void {
    this.#subscription[Symbol.dispose]();
  }

  /** One command of a lane; nanoseconds until its receipt had been read. */
  async #step(lane: Lane, number: number): Promise<number> {
    const places = lane.groups.length * OWNERS;
    const pin = lane.standing < places / 2;
    const at = (pin ? lane.first + lane.standing : lane.first) % places;
    const group = lane.groups[Math.floor(at / OWNERS)]!;
    const start = Bun.nanoseconds();
    const id = `${this.#sent++}`;
    const issuer = `bench-${number % ISSUERS}`;
    const message = await this.#ask(id, this.#body(id, issuer, group, at % OWNERS, pin));
    this.#check(message, id, this.#options.groups[group]!.length);
    if (!pin) lane.first = (lane.first + 1) % places;
    lane.standing += pin ? 1 : -1;
    return Bun.nanoseconds() - start;
  }

  #body(id: string, issuer: string, group: number, owner: number, pin: boolean): Uint8Array {
    const list = this.#lists[group]!;
    if (typeof list !== "string") {
      const members = {
        type: "Cache",
        block_hashes: list,
        pin,
        id,
        issuer,
        owner: ownerName(owner),
      };
      return Uint8Array.from(encodeBody(members, MSGPACK_TYPE));
    }
    const beside = `"id":"${id}","issuer":"${issuer}","owner":"${ownerName(owner)}"`;
    return utf8.encode(`{"type":"Cache","block_hashes":[${list}],"pin":${pin},${beside}}`);
  }

  #ask(id: string, data: Uint8Array): Promise<BusMessage> {
    const { bus, workerId, encoding } = this.#options;
    const reply = `${this.#inbox}.${id}`;
    const headers = HEADERS[encoding];
    const { promise, resolve } = Promise.withResolvers<BusMessage>();
    this.#waiting.set(reply, (message) => {
      this.#waiting.delete(reply);
      resolve(message);
    });
    const outcome = bus.publish(`kv-control-${workerId}`, data, { reply, headers });
    if (outcome !== "dropped") return promise;
    throw new HearthError("LIMIT", "the bus dropped a command of the benchmark");
  }

  /** Throws INTERNAL where a receipt does not say that all of it was done. */
  #check({ data }: BusMessage, id: string, blocks: number): void {
    const receipt = this.#read(data);
    const isDone =
      receipt.id === id &&
      receipt.status === "ok" &&
      receipt.durable === this.#options.durable &&
      receipt.counts.done === blocks &&
      receipt.blocks.length === blocks &&
      receipt.blocks.every(({ outcome }) => outcome === "done");
    if (isDone) return;
    const { status, reason, counts } = receipt;
    const what = `${status} ${reason ?? ""} ${JSON.stringify(counts)}`;
    throw new HearthError("INTERNAL", `a receipt is not as it should be: ${what}`);
  }

  #read(data: Uint8Array): ReceiptParts {
    // Hashes lose digits, which are not looked at.
    if (this.#options.encoding === "json") return JSON.parse(Buffer.from(data).toString());
    const body = decodeBody(data, MSGPACK_TYPE, LIMITS);
    if (body.ok) return body.value as ReceiptParts;
    throw new HearthError("INTERNAL", `a receipt cannot be read: ${body.refusal.words}`);
  }
}

/** What is looked at. */
interface ReceiptParts {
  readonly id: string;
  readonly status: string;
  readonly durable?: boolean;
  readonly reason?: string;
  readonly counts: Readonly<Record<string, number>>;
  readonly blocks: readonly { readonly outcome: string }[];
}

export function ownerName(owner: number): string {
  return `owner-${owner}`;
}
