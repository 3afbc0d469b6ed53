import { decodeReceipt, JSON_TYPE } from "../../src/control/index.ts";
import { stringifyJson } from "../../src/core/index.ts";
import type { ChaosBus } from "./chaos-bus.ts";
import { PROMPTS } from "./flows.ts";
import type { Oracle } from "./oracle.ts";

const ISSUER = "numbered";

/**
 * Commands without an id, each with a number and sent once: the number alone keeps copies from
 * being carried out. What comes late, or never, is not.
 */
export class OnceSender {
  readonly #bus: ChaosBus;
  readonly #subject: string;
  readonly #oracle: Oracle;
  readonly #inbox: string;
  #seq = 0;

  constructor(bus: ChaosBus, worker: string, oracle: Oracle) {
    this.#bus = bus;
    this.#subject = `kv-control-${worker}`;
    this.#oracle = oracle;
    this.#inbox = "_INBOX.numbered";
    bus.subscribe(`${this.#inbox}.*`, ({ subject, data }) => {
      const receipt = decodeReceipt(data, JSON_TYPE);
      if (receipt === null || receipt.status === "rejected") return;
      oracle.onceAtMost.set(subject.slice(this.#inbox.length + 1), true);
    });
  }

  one(): void {
    const seq = ++this.#seq;
    const owner = `numbered-${seq}`;
    const body = {
      ...{ type: "Cache", block_hashes: [PROMPTS[0]!.hash], pin: true },
      ...{ issuer: ISSUER, owner, epoch: 1, seq },
    };
    this.#oracle.onceAtMost.set(owner, false);
    const reply = `${this.#inbox}.${owner}`;
    this.#bus.publish(this.#subject, Buffer.from(stringifyJson(body)), { reply });
  }
}
