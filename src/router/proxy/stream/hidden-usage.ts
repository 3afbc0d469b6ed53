import type { Json } from "../../../core/index.ts";

const DATA = "data:";
/** A usage that says something: others write `null` into every event. */
const TOLD = /"usage": ?\{/;
const USAGE = Buffer.from('"usage":');

/** The member that asks an engine how many tokens it counted, beside what the client wrote. */
export function usageMember(options: Json | undefined): Readonly<Record<string, Json>> {
  const asked = typeof options === "object" && options !== null ? options : {};
  // Without `include_usage` it meant nothing, so that the client expects no usage in each event.
  const isContinuous = "continuous_usage_stats" in asked ? { continuous_usage_stats: false } : {};
  return { stream_options: { ...asked, ...isContinuous, include_usage: true } };
}

/** Takes the event with the usage out of a stream whose client did not ask for it. */
export class HiddenUsage {
  /** An engine that says its usage with each event does so for every client. */
  #isForced = false;

  /** Whole events; null: nothing is left of them. Events without a usage are not looked into. */
  take(bytes: Uint8Array<ArrayBuffer>): Uint8Array<ArrayBuffer> | null {
    const view = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
    if (this.#isForced || view.lastIndexOf(USAGE) < 0) return bytes;
    const text = view.toString("utf8");
    if (!TOLD.test(text)) return bytes;
    const events = text.split(/(?<=\n\n|\r\n\r\n)/);
    const kept = events.filter((event) => !this.#isUsage(event));
    if (kept.length === events.length) return bytes;
    return kept.length === 0 ? null : new TextEncoder().encode(kept.join(""));
  }

  #isUsage(event: string): boolean {
    if (this.#isForced || !event.startsWith(DATA) || !TOLD.test(event)) return false;
    try {
      const { choices, usage } = JSON.parse(event.slice(DATA.length)) as Record<string, unknown>;
      if (!Array.isArray(choices) || typeof usage !== "object" || usage === null) return false;
      this.#isForced = choices.length > 0;
      return choices.length === 0;
    } catch {
      return false;
    }
  }
}
