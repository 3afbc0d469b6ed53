import type { Json } from "../../core/index.ts";
import type { ErrorShape } from "./endpoint.ts";
import type { ReasoningTokens } from "./observer.ts";
import { type Fields, fieldsIn, isFields } from "./request-body.ts";
import type { Tokens } from "./tokens/index.ts";

/** Maximum characters of an answer to collect. The output of a longer answer is unknown. */
const TEXT_MAX = 512 * 1024;

/** Collects the output of a worker, for observers that need its tokens. */
export class OutputWatch {
  readonly #isStream: boolean;
  readonly #decoder = new TextDecoder();
  readonly #reported: number[] = [];
  #reasoning = "";
  #content = "";
  #length = 0;

  constructor(isStream: boolean) {
    this.#isStream = isStream;
  }

  /** Adds complete events of a stream, or a complete answer. */
  add(bytes: Uint8Array): void {
    const text = this.#decoder.decode(bytes, { stream: true });
    this.#length += text.length;
    if (this.#length > TEXT_MAX) return;
    for (const part of outputParts(text, this.#isStream)) {
      this.#reasoning += part.reasoning;
      this.#content += part.content;
      for (const token of part.tokens) this.#reported.push(token);
    }
  }

  /**
   * Returns the output's tokens. Null if the output is empty or too long, or the model has no
   * tokenizer.
   */
  async tokens(
    model: string,
    tokens: Tokens,
    reasoning: ReasoningTokens | null,
  ): Promise<Uint32Array | null> {
    if (this.#length > TEXT_MAX) return null;
    if (this.#reported.length > 0) return Uint32Array.from(this.#reported);
    const content = await cut(model, tokens, this.#content);
    if (this.#reasoning === "" || reasoning === null) return content;
    const inner = await cut(model, tokens, this.#reasoning);
    if (inner === null) return null;
    return Uint32Array.from([reasoning.start, ...inner, reasoning.end, ...(content ?? [])]);
  }
}

async function cut(model: string, tokens: Tokens, text: string): Promise<Uint32Array | null> {
  return text === "" ? null : ((await tokens.output(model, text))?.tokens ?? null);
}

/** Output of the first choice in one event or in an answer. */
interface OutputPart {
  readonly reasoning: string;
  readonly content: string;
  /** Token ids. Empty unless the worker reports them (vLLM with `return_token_ids`). */
  readonly tokens: readonly number[];
}

/** Parses complete events, or an answer that is not a stream. Ignores unreadable parts. */
function outputParts(text: string, isStream: boolean): OutputPart[] {
  const values = isStream
    ? text.split(/\r?\n/).flatMap((line) => (line.startsWith("data:") ? [line.slice(5)] : []))
    : [text];
  return values.flatMap((value) => {
    const choices = fieldsIn(value)?.choices;
    const choice = Array.isArray(choices) ? choices[0] : null;
    return isFields(choice) && (choice.index ?? 0) === 0 ? [partOf(choice)] : [];
  });
}

function partOf(choice: Fields): OutputPart {
  const inner = choice.delta ?? choice.message;
  const fields = isFields(inner) ? inner : {};
  const tokens = Array.isArray(choice.token_ids) ? choice.token_ids : [];
  return {
    // vLLM renamed this field to `reasoning`; SGLang uses the older name.
    reasoning: textOf(fields.reasoning ?? fields.reasoning_content),
    content: textOf(choice.text ?? fields.content),
    tokens: (tokens as number[]).filter((token) => Number.isInteger(token) && token >= 0),
  };
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}

const DATA = Buffer.from("data:");
const USAGE = Buffer.from('"usage":');
/**
 * JSON keys of token counts: in OpenAI's older APIs, then in the Responses API and Anthropic's API.
 */
const OUTPUTS = [Buffer.from('"completion_tokens":'), Buffer.from('"output_tokens":')];
const PROMPTS = [Buffer.from('"prompt_tokens":'), Buffer.from('"input_tokens":')];
/**
 * Keys to add to Anthropic's `input_tokens`, which excludes tokens read from or written to the
 * cache.
 */
const CACHED = [
  Buffer.from('"cache_read_input_tokens":'),
  Buffer.from('"cache_creation_input_tokens":'),
];
const LF = 0x0a;
const DIGITS_MAX = 12;

/** Byte patterns that identify events in the streams of an API. */
interface Marks {
  /** Pattern in the last event of a complete stream. */
  readonly end: Buffer;
  /** Pattern in each event with output. Null: every event but the last has output. */
  readonly output: Buffer | null;
}

const MARKS: Readonly<Record<ErrorShape, Marks>> = {
  openai: { end: Buffer.from("[DONE]"), output: null },
  responses: { end: Buffer.from('"response.completed"'), output: Buffer.from('.delta"') },
  anthropic: { end: Buffer.from('"message_stop"'), output: Buffer.from('"content_block_delta"') },
};

/**
 * Counts generated tokens. Engines send one event per step, so each event with output counts as one
 * token until the worker reports a number in `usage`, at the end or in each event.
 */
export class OutputCount {
  /** True if the last event arrived. A client that disconnects now has the whole answer. */
  isDone = false;
  readonly #marks: Marks;
  #events = 0;
  #reported: number | null = null;
  #prompt: number | null = null;

  constructor(shape: ErrorShape = "openai") {
    this.#marks = MARKS[shape];
  }

  get tokens(): number {
    return this.#reported ?? this.#events;
  }

  /** Number of prompt tokens as the worker reported it. Null: not reported. */
  get promptTokens(): number | null {
    return this.#prompt;
  }

  /** Adds complete events. Returns true if one of them had output. */
  addEvents(bytes: Uint8Array<ArrayBuffer>): boolean {
    const view = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
    const before = this.#events;
    for (let at = view.indexOf(DATA); at >= 0; at = view.indexOf(DATA, at + DATA.length)) {
      if (at > 0 && view[at - 1] !== LF) continue;
      this.#addEvent(view, at + DATA.length);
    }
    this.addUsage(view);
    return this.#events > before;
  }

  #addEvent(view: Buffer, from: number): void {
    const { end, output } = this.#marks;
    if (output === null) {
      const start = view[from] === 0x20 ? from + 1 : from;
      if (view.subarray(start, start + end.length).equals(end)) this.isDone = true;
      else this.#events++;
      return;
    }
    const lineEnd = view.indexOf(LF, from);
    const line = view.subarray(from, lineEnd < 0 ? view.length : lineEnd);
    if (line.includes(output)) this.#events++;
    else if (line.includes(end)) this.isDone = true;
  }

  /**
   * Reads the `usage` of an answer or event. Ignores 0, which the first event of some streams
   * reports.
   */
  addUsage(view: Buffer): void {
    const at = view.lastIndexOf(USAGE);
    if (at < 0) return;
    const usage = view.subarray(at);
    for (const key of OUTPUTS) {
      const reported = lastNumber(usage, key);
      if (reported !== null && reported > 0) this.#reported = reported;
    }
    for (const key of PROMPTS) {
      const reported = lastNumber(usage, key);
      if (reported === null) continue;
      const all = CACHED.reduce((sum, cached) => sum + (lastNumber(usage, cached) ?? 0), reported);
      if (all > 0) this.#prompt = all;
    }
  }
}

function lastNumber(view: Buffer, key: Buffer): number | null {
  const at = view.lastIndexOf(key);
  if (at < 0) return null;
  const start = at + key.length;
  const digits = /^ *([0-9]{1,9})/.exec(view.toString("latin1", start, start + DIGITS_MAX));
  return digits === null ? null : Number(digits[1]);
}

const DATA_PREFIX = "data:";
/** Matches a usage that has values. Some engines write `null` in every event. */
const USAGE_OBJECT = /"usage": ?\{/;

/**
 * Returns the request field that makes an engine report its token counts, merged with the client's
 * options.
 */
export function usageMember(options: Json | undefined): Readonly<Record<string, Json>> {
  const incoming = typeof options === "object" && options !== null ? options : {};
  // Without `include_usage`, `continuous_usage_stats` has no effect, so the client does not expect
  // usage in each event.
  const isContinuous =
    "continuous_usage_stats" in incoming ? { continuous_usage_stats: false } : {};
  return { stream_options: { ...incoming, ...isContinuous, include_usage: true } };
}

/** Removes the usage event from a stream whose client did not request it. */
export class HiddenUsage {
  /**
   * True if the engine reports usage with each event. It then does so for every client, and nothing
   * is removed.
   */
  #isForced = false;

  /**
   * Returns complete events without the usage event. Null if none are left. Parses only events that
   * contain usage.
   */
  take(bytes: Uint8Array<ArrayBuffer>): Uint8Array<ArrayBuffer> | null {
    const view = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
    if (this.#isForced || view.lastIndexOf(USAGE) < 0) return bytes;
    const text = view.toString("utf8");
    if (!USAGE_OBJECT.test(text)) return bytes;
    const events = text.split(/(?<=\n\n|\r\n\r\n)/);
    const kept = events.filter((event) => !this.#isUsage(event));
    if (kept.length === events.length) return bytes;
    return kept.length === 0 ? null : new TextEncoder().encode(kept.join(""));
  }

  #isUsage(event: string): boolean {
    if (this.#isForced || !event.startsWith(DATA_PREFIX) || !USAGE_OBJECT.test(event)) return false;
    const { choices, usage } = fieldsIn(event.slice(DATA_PREFIX.length)) ?? {};
    if (!Array.isArray(choices) || typeof usage !== "object" || usage === null) return false;
    this.#isForced = choices.length > 0;
    return choices.length === 0;
  }
}

const CR = 0x0d;

/** Maximum bytes of an incomplete event to hold back. Longer events are forwarded in parts. */
const HELD_MAX = 256 * 1024;

/**
 * Splits a stream of server-sent events after complete events, so that no partial event is
 * forwarded. Neither changes nor reorders bytes.
 */
export class EventCutter {
  #held: Uint8Array<ArrayBuffer>[] = [];
  #heldBytes = 0;
  /** True if the current line is empty so far. An empty line ends an event. */
  #isLineEmpty = true;
  /** Kind of line end that the preceding CR was. A following LF belongs to the same line end. */
  #ended: "nothing" | "line" | "event" = "nothing";

  /** Adds bytes. Returns the complete events that can be forwarded now, in order. */
  push(bytes: Uint8Array<ArrayBuffer>): Uint8Array<ArrayBuffer>[] {
    const cut = this.#endOfEvents(bytes);
    if (cut === 0) {
      this.#hold(bytes);
      return this.#heldBytes > HELD_MAX ? this.takeHeld() : [];
    }
    const whole = this.takeHeld();
    whole.push(cut === bytes.length ? bytes : bytes.subarray(0, cut));
    if (cut < bytes.length) this.#hold(bytes.subarray(cut));
    return whole;
  }

  takeHeld(): Uint8Array<ArrayBuffer>[] {
    const held = this.#held;
    this.#held = [];
    this.#heldBytes = 0;
    return held;
  }

  #hold(bytes: Uint8Array<ArrayBuffer>): void {
    this.#held.push(bytes);
    this.#heldBytes += bytes.length;
  }

  /**
   * Returns the offset of the byte that follows the last event that ends in `bytes`. 0 if none ends
   * there.
   */
  #endOfEvents(bytes: Uint8Array): number {
    let [end, isEmpty, ended] = [0, this.#isLineEmpty, this.#ended];
    for (let at = 0; at < bytes.length; at++) {
      const byte = bytes[at];
      if (byte === LF && ended !== "nothing") {
        if (ended === "event") end = at + 1;
        ended = "nothing";
        continue;
      }
      ended = "nothing";
      if (byte !== LF && byte !== CR) {
        isEmpty = false;
        at = nextLineEnd(bytes, at) - 1;
        continue;
      }
      if (isEmpty) end = at + 1;
      if (byte === CR) ended = isEmpty ? "event" : "line";
      isEmpty = true;
    }
    [this.#isLineEmpty, this.#ended] = [isEmpty, ended];
    return end;
  }
}

/** Returns the offset of the line end of the line that contains offset `at`. */
function nextLineEnd(bytes: Uint8Array, at: number): number {
  const lf = bytes.indexOf(LF, at);
  const end = lf < 0 ? bytes.length : lf;
  const cr = bytes.subarray(at, end).indexOf(CR);
  return cr < 0 ? end : at + cr;
}
