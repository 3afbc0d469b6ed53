import type { Json } from "../../core/index.ts";
import type { ErrorShape } from "./endpoint.ts";
import type { ReasoningTokens } from "./observer.ts";
import type { Tokens } from "./tokens/index.ts";

/** Longer answers are not read to their end. */
const TEXT_MAX = 512 * 1024;

/** Collects what a worker writes, for observers who want it as tokens. */
export class OutputWatch {
  readonly #isStream: boolean;
  readonly #decoder = new TextDecoder();
  readonly #told: number[] = [];
  #reasoning = "";
  #content = "";
  #length = 0;

  constructor(isStream: boolean) {
    this.#isStream = isStream;
  }

  /** Whole events, or the whole answer. */
  add(bytes: Uint8Array): void {
    const text = this.#decoder.decode(bytes, { stream: true });
    this.#length += text.length;
    if (this.#length > TEXT_MAX) return;
    for (const part of outputParts(text, this.#isStream)) {
      this.#reasoning += part.reasoning;
      this.#content += part.content;
      for (const token of part.tokens) this.#told.push(token);
    }
  }

  /** Null: nothing came, it was too long, or there is no tokenizer. */
  async tokens(
    model: string,
    tokens: Tokens,
    reasoning: ReasoningTokens | null,
  ): Promise<Uint32Array | null> {
    if (this.#length > TEXT_MAX) return null;
    if (this.#told.length > 0) return Uint32Array.from(this.#told);
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

type Fields = Readonly<Record<string, unknown>>;

/** What a worker wrote to the first choice, in one event or at once. */
interface OutputPart {
  readonly reasoning: string;
  readonly content: string;
  /** Where it tells them: vLLM with `return_token_ids`. */
  readonly tokens: readonly number[];
}

/** Of whole events, or of an answer that is no stream. What cannot be read says nothing. */
function outputParts(text: string, isStream: boolean): OutputPart[] {
  const values = isStream
    ? text.split(/\r?\n/).flatMap((line) => (line.startsWith("data:") ? [line.slice(5)] : []))
    : [text];
  return values.flatMap((value) => {
    try {
      const { choices } = JSON.parse(value) as { choices?: unknown };
      const choice: unknown = Array.isArray(choices) ? choices[0] : null;
      return isFields(choice) && (choice.index ?? 0) === 0 ? [partOf(choice)] : [];
    } catch {
      return [];
    }
  });
}

function partOf(choice: Fields): OutputPart {
  const inner = choice.delta ?? choice.message;
  const fields = isFields(inner) ? inner : {};
  const tokens = Array.isArray(choice.token_ids) ? choice.token_ids : [];
  return {
    // vLLM renamed it; SGLang has the older name.
    reasoning: textOf(fields.reasoning ?? fields.reasoning_content),
    content: textOf(choice.text ?? fields.content),
    tokens: tokens.filter((token) => Number.isInteger(token) && token >= 0),
  };
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function isFields(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

const DATA = Buffer.from("data:");
const USAGE = Buffer.from('"usage":');
/** As OpenAI's older APIs have it, and as the Responses API and Anthropic's have it. */
const OUTPUTS = [Buffer.from('"completion_tokens":'), Buffer.from('"output_tokens":')];
const PROMPTS = [Buffer.from('"prompt_tokens":'), Buffer.from('"input_tokens":')];
/** Anthropic's `input_tokens` leaves out what the cache had, and what went there. */
const CACHED = [
  Buffer.from('"cache_read_input_tokens":'),
  Buffer.from('"cache_creation_input_tokens":'),
];
const LF = 0x0a;
const DIGITS_MAX = 12;

/** What tells the events of an API's streams apart. */
interface Marks {
  /** In the last event of a stream that is whole. */
  readonly end: Buffer;
  /** In each event that brings output; null: every event but the last one does. */
  readonly output: Buffer | null;
}

const MARKS: Readonly<Record<ErrorShape, Marks>> = {
  openai: { end: Buffer.from("[DONE]"), output: null },
  responses: { end: Buffer.from('"response.completed"'), output: Buffer.from('.delta"') },
  anthropic: { end: Buffer.from('"message_stop"'), output: Buffer.from('"content_block_delta"') },
};

/**
 * Counts what a worker generated. Each event with output counts as a token until the worker itself
 * says how many there are: engines send one event a step, and `usage` at the end or with each.
 */
export class OutputCount {
  /** The last event came: clients may leave now without missing anything. */
  isDone = false;
  readonly #marks: Marks;
  #events = 0;
  #told: number | null = null;
  #prompt: number | null = null;

  constructor(shape: ErrorShape = "openai") {
    this.#marks = MARKS[shape];
  }

  get tokens(): number {
    return this.#told ?? this.#events;
  }

  /** Tokens of the prompt, where the worker has said how many there are. */
  get promptTokens(): number | null {
    return this.#prompt;
  }

  /** Whole events; whether there was one with output. */
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

  /** `usage` of an answer, or of an event. The first event of some streams says 0. */
  addUsage(view: Buffer): void {
    const at = view.lastIndexOf(USAGE);
    if (at < 0) return;
    const usage = view.subarray(at);
    for (const key of OUTPUTS) {
      const told = lastNumber(usage, key);
      if (told !== null && told > 0) this.#told = told;
    }
    for (const key of PROMPTS) {
      const told = lastNumber(usage, key);
      if (told === null) continue;
      const all = CACHED.reduce((sum, cached) => sum + (lastNumber(usage, cached) ?? 0), told);
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
/** A usage that says something: others write `null` into every event. */
const TOLD = /"usage": ?\{/;

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
    if (this.#isForced || !event.startsWith(DATA_PREFIX) || !TOLD.test(event)) return false;
    try {
      const { choices, usage } = JSON.parse(event.slice(DATA_PREFIX.length)) as Record<
        string,
        unknown
      >;
      if (!Array.isArray(choices) || typeof usage !== "object" || usage === null) return false;
      this.#isForced = choices.length > 0;
      return choices.length === 0;
    } catch {
      return false;
    }
  }
}

const CR = 0x0d;

/** An event that is longer is passed on in parts. */
const HELD_MAX = 256 * 1024;

/**
 * Cuts a stream of server-sent events behind whole events, so that what broke off in the middle of
 * one is never passed on. Bytes are neither changed nor reordered.
 */
export class EventCutter {
  #held: Uint8Array<ArrayBuffer>[] = [];
  #heldBytes = 0;
  /** Whether the next byte begins a line: a line that ends at once ends an event. */
  #isLineEmpty = true;
  /** What a CR just before the next byte ended: an LF would belong to the same line's end. */
  #ended: "nothing" | "line" | "event" = "nothing";

  /** All whole events there are now, in order; empty where none has ended. */
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

  /** Where the last event that ends in `bytes` has its end; 0: none does. */
  #endOfEvents(bytes: Uint8Array): number {
    let [end, isEmpty, ended] = [0, this.#isLineEmpty, this.#ended];
    for (let at = 0; at < bytes.length; at++) {
      const byte = bytes[at]!;
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

/** Of the line that goes on at `at`. */
function nextLineEnd(bytes: Uint8Array, at: number): number {
  const lf = bytes.indexOf(LF, at);
  const end = lf < 0 ? bytes.length : lf;
  const cr = bytes.subarray(at, end).indexOf(CR);
  return cr < 0 ? end : at + cr;
}
