import type { WorkerId } from "../../core/index.ts";

const HOMES_MAX = 65_536;
/** The id stands in front, in an answer as in the first event of a stream. */
const LOOK_BYTES = 1_024;
const ID = /"id": ?"(resp_[A-Za-z0-9_-]{1,128})"/;

/**
 * Which worker keeps which stored response (`store` of the Responses API): what refers to one goes
 * to the worker that has it. The oldest of 65,536 are forgotten.
 */
export class ResponseHomes {
  readonly #homes = new Map<string, WorkerId>();

  /** Takes the first bytes of an answer. */
  note(bytes: Uint8Array, worker: WorkerId): void {
    const text = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
    const id = ID.exec(text.toString("latin1", 0, LOOK_BYTES))?.[1];
    if (id === undefined) return;
    const [oldest] = this.#homes.keys();
    if (this.#homes.size >= HOMES_MAX && oldest !== undefined) this.#homes.delete(oldest);
    this.#homes.set(id, worker);
  }

  /** Null: it came through another router, or long ago. */
  of(id: unknown): WorkerId | null {
    return typeof id === "string" ? (this.#homes.get(id) ?? null) : null;
  }
}
