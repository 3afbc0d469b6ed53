import type { Bus, BusMessage } from "../../../src/bus/index.ts";
import type { Receipt } from "../../../src/control/index.ts";
import { type Json, parseJson, stringifyJson } from "../../../src/core/index.ts";

export type Received = { readonly [name: string]: Json };

/** A receipt in which everything went well; `with` replaces members. */
export function receiptOf(worker: string, command: Received, members: Partial<Receipt> = {}) {
  return {
    id: typeof command.id === "string" ? command.id : null,
    type: String(command.type),
    worker_id: worker,
    incarnation: "18446744073709551615",
    issuer: String(command.issuer ?? "nobody"),
    status: "ok",
    counts: { done: 1, already: 0, missing: 0, held: 0, deferred: 0, rejected: 0 },
    blocks: [{ block: -9223372036854775808n, outcome: "done" }],
    elapsed_ms: 1.5,
    ...members,
  } satisfies Receipt;
}

/** What a test makes of each message; the standard is to answer at once. */
export type Behave = (
  message: { readonly command: Received; readonly raw: BusMessage; readonly nth: number },
  answer: (receipt: Receipt) => void,
) => void;

/**
 * The worker's side, as plainly as can be: a command with an id it has seen changes nothing and
 * gets the receipt of then.
 */
export class FakeWorker {
  readonly name: string;
  readonly received: Received[] = [];
  /** Commands that had an effect, by id. */
  readonly carriedOut: string[] = [];
  readonly #bus: Bus;
  readonly #known = new Map<string, Receipt>();
  behave: Behave = ({ command }, answer) => answer(this.carryOut(command));
  isFound = true;

  constructor(bus: Bus, name: string) {
    this.#bus = bus;
    this.name = name;
    const take = (raw: BusMessage) => this.#take(raw);
    bus.subscribe(`kv-control-${name}`, take);
    bus.subscribe("kv-control-broadcast", take);
    bus.subscribe("$SRV.PING.hearth-agent", ({ reply }) => {
      if (this.isFound && reply !== null) bus.publish(reply, this.ping());
    });
  }

  carryOut(command: Received): Receipt {
    const id = String(command.id);
    const known = this.#known.get(id);
    if (known !== undefined) return { ...known, duplicate: true };
    const receipt = receiptOf(this.name, command);
    this.#known.set(id, receipt);
    this.carriedOut.push(id);
    return receipt;
  }

  ping(name = "hearth-agent"): Uint8Array {
    return new TextEncoder().encode(
      JSON.stringify({
        name,
        id: `id-of-${this.name}`,
        version: "1.2.3",
        metadata: { worker_id: this.name, incarnation: "77" },
        type: "io.nats.micro.v1.ping_response",
      }),
    );
  }

  #take(raw: BusMessage): void {
    const command = parseJson(new TextDecoder().decode(raw.data)) as Received;
    this.received.push(command);
    const { reply } = raw;
    this.behave({ command, raw, nth: this.received.length }, (receipt) => {
      if (reply !== null) this.#bus.publish(reply, encode(receipt));
    });
  }
}

export function encode(value: unknown): Uint8Array {
  return new TextEncoder().encode(stringifyJson(value));
}
