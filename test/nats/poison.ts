import { BUS_LIMITS, type Bus } from "../../src/bus/index.ts";
import { encodeBody, JSON_TYPE, MSGPACK_TYPE } from "../../src/control/index.ts";
import { type Random, randomBelow } from "../../src/core/index.ts";

interface Poison {
  readonly data: Uint8Array;
  readonly contentType: string;
}

const text = (body: string, contentType: string = JSON_TYPE): Poison => ({
  ...{ data: Buffer.from(body), contentType },
});
const raw = (data: Uint8Array, contentType: string = JSON_TYPE): Poison => ({ data, contentType });

const PIN = { type: "Cache", block_hashes: [1000], pin: true };
/** More than one command may have, less than the broker takes. */
const HUGE_BYTES = 3 * 2 ** 20;
const DEEP = 100_000;

/** What no agent may fall over, and none may take for a command. */
const POISONS: readonly ((random: Random) => Poison)[] = [
  () => text("{"),
  () => text(""),
  () => text("[]"),
  () => text("null"),
  () => text('{"type": "Cache", "block_hashes": [1000], "pin": true} trailing'),
  () => text('{"type": "Burn", "block_hashes": [1000]}'),
  () => text('{"type": "Cache", "pin": true}'),
  () => text('{"type": "Cache", "block_hashes": "1000", "pin": true}'),
  () => text('{"type": "Pause", "block_hashes": [1000], "ttl_seconds": -1, "lease_id": "x"}'),
  () => text('{"__proto__": {"type": "Flush"}}'),
  () => text(`{"type": "${"x".repeat(10_000)}"}`),
  () => text(`${"[".repeat(DEEP)}${"]".repeat(DEEP)}`),
  () => text(`{"type": "Cache", "pin": true, "block_hashes": [${"1,".repeat(70_000)}1]}`),
  () => raw(new Uint8Array(HUGE_BYTES).fill(0x20)),
  () => raw(Uint8Array.from([0x7b, 0x22, 0xff, 0xfe, 0x22, 0x3a, 0x31, 0x7d])),
  // One encoding under the name of the other.
  () => raw(encodeBody(PIN, JSON_TYPE), MSGPACK_TYPE),
  () => raw(Uint8Array.from(encodeBody(PIN, MSGPACK_TYPE)), JSON_TYPE),
  () => raw(Uint8Array.from(encodeBody(PIN, MSGPACK_TYPE)), "text/html; charset=nonsense"),
  // Four thousand million items, and an end after the first.
  () => raw(Uint8Array.from([0xdd, 0xff, 0xff, 0xff, 0xff, 0x01]), MSGPACK_TYPE),
  () => raw(Uint8Array.from(new Array(DEEP).fill(0x91)), MSGPACK_TYPE),
  (random) =>
    raw(
      Uint8Array.from({ length: 200 }, () => randomBelow(random, 256)),
      MSGPACK_TYPE,
    ),
];

export const POISON_KINDS = POISONS.length;

const INBOX = "_INBOX.poison";

/** Somebody who publishes what is no command, and hears what is said to it. */
export class Poisoner {
  readonly #bus: Bus;
  readonly #subject: string;
  readonly #random: Random;
  /** Numbers of those that were answered. */
  readonly #answered = new Set<string>();
  #next = 0;
  /** Handed to a connection, or waiting for one. */
  sent = 0;
  /** Answers that are no refusal. */
  readonly accepted: string[] = [];

  constructor(bus: Bus, worker: string, random: Random) {
    this.#bus = bus;
    this.#subject = `kv-control-${worker}`;
    this.#random = random;
    bus.subscribe(`${INBOX}.*`, ({ subject, data, headers }) => {
      if (headers.Status === "503") return;
      this.#answered.add(subject);
      const answer = Buffer.from(data).toString("latin1");
      if (!answer.includes("rejected")) this.accepted.push(answer.slice(0, 200));
    });
  }

  get answered(): number {
    return this.#answered.size;
  }

  /** One of each kind, in turns; larger than the broker takes is not sent. */
  one(): void {
    const { data, contentType } = POISONS[this.#next++ % POISONS.length]!(this.#random);
    const reply = `${INBOX}.${this.#next}`;
    // What is queued for a broker that is down must not push commands of others out of its way.
    if (this.#bus.state.queuedBytes > BUS_LIMITS.queueBytes / 4) return;
    const headers = { "Content-Type": contentType };
    if (this.#bus.publish(this.#subject, data, { reply, headers }) !== "dropped") this.sent++;
  }
}
