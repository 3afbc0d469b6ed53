import type { Tokens } from "./tokens/index.ts";

/** As vLLM probes a template: a system message in front, and one between others. */
const INLINE_SYSTEM = JSON.stringify({
  messages: ["system", "user", "system", "user"].map((role) => ({ role, content: "t" })),
  add_generation_prompt: false,
});

/** What Anthropic's `output_config.effort` may be. */
const EFFORTS = ["low", "medium", "high", "xhigh", "max"] as const;

/**
 * What a model's template does with requests of Anthropic's Messages API, found out as vLLM does:
 * by rendering small conversations. Each is asked once for a model.
 */
export class TemplateHabits {
  readonly #tokens: Tokens;
  readonly #merges = new Map<string, Promise<boolean>>();
  readonly #efforts = new Map<string, Promise<"none" | "low">>();

  constructor(tokens: Tokens) {
    this.#tokens = tokens;
  }

  /** Whether the template refuses a system message that is not the first one. */
  mergesSystem(model: string): Promise<boolean> {
    return remembered(this.#merges, model, async () => {
      return (await this.#tokens.chat(model, INLINE_SYSTEM)) === null;
    });
  }

  /** What `reasoning_effort` vLLM renders for thinking that is disabled. */
  disabledEffort(model: string): Promise<"none" | "low"> {
    return remembered(this.#efforts, model, async () => {
      const none = await this.#effort(model, "none");
      if (none === null) return "low";
      for (const effort of EFFORTS) {
        const other = await this.#effort(model, effort);
        if (other !== null && Buffer.from(other.buffer).equals(Buffer.from(none.buffer))) {
          return "low";
        }
      }
      return "none";
    });
  }

  async #effort(model: string, effort: string): Promise<Uint32Array<ArrayBuffer> | null> {
    const messages = [{ role: "user", content: "Hi" }];
    const text = JSON.stringify({ messages, reasoning_effort: effort });
    const seen = await this.#tokens.chat(model, text);
    return seen === null ? null : Uint32Array.from(seen.tokens);
  }
}

function remembered<T>(known: Map<string, Promise<T>>, model: string, find: () => Promise<T>) {
  const found = known.get(model) ?? find();
  known.set(model, found);
  return found;
}
