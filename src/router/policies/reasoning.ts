import { type CommandQueue, DelayQueue, isAllMissing, type OrderOutcome } from "./command-queue.ts";
import type { Moment, Policy, RoutedPrompt } from "./policies.ts";
import type { BlockNamer } from "./prompt-chain.ts";
import type { PolicySettings, ReasoningTokens } from "./settings.ts";

/**
 * Marks answer blocks that contain only reasoning as transient. Chat templates drop reasoning from
 * the next prompt, so no request will use these blocks again. With some templates, the prompt
 * already opens the reasoning.
 */
export class Reasoning implements Policy {
  readonly queue: CommandQueue;
  readonly #settings: PolicySettings["reasoning"];
  readonly #namer: BlockNamer;
  readonly #models: ReadonlyMap<string, ReasoningTokens>;
  readonly #later: DelayQueue;

  constructor(
    queue: CommandQueue,
    settings: PolicySettings["reasoning"],
    namer: BlockNamer,
    models: ReadonlyMap<string, ReasoningTokens>,
  ) {
    this.queue = queue;
    this.#settings = settings;
    this.#namer = namer;
    this.#models = models;
    this.#later = new DelayQueue(settings.pendingMax);
  }

  answered(prompt: RoutedPrompt, output: Uint32Array, at: Moment): void {
    const { request, target, chain } = prompt;
    const ids = this.#models.get(request.model);
    if (ids === undefined || request.prompt.kind !== "tokens") return;
    const { tokens } = request.prompt;
    const isOpen = tokens.lastIndexOf(ids.open) > tokens.lastIndexOf(ids.close);
    const inside = insideOf(output, ids, isOpen).map(([from, to]) => [
      Math.ceil((tokens.length + from) / chain.blockTokens),
      Math.floor((tokens.length + to) / chain.blockTokens),
    ]);
    if (inside.every(([from, to]) => from! >= to!)) return;
    const whole = this.#namer.chain(target, request, output);
    if (whole === null) return;
    const names = inside.flatMap(([from, to]) => whole.names(from!, Math.max(from!, to!)));
    this.#mark(prompt, names, 1, at);
  }

  tick({ nowMs }: Moment): void {
    this.#later.run(nowMs);
  }

  #mark(prompt: RoutedPrompt, names: readonly string[], tries: number, at: Moment): void {
    this.queue.send({
      requestId: prompt.requestId,
      worker: prompt.target.worker,
      command: { type: "Think", block_hashes: names, transient: true },
      settled: (outcome) => this.#settled(prompt, names, tries, outcome, at),
    });
  }

  /**
   * Handles a receipt. Retries missing blocks, because engines store blocks some time after an
   * answer.
   */
  #settled(
    prompt: RoutedPrompt,
    names: readonly string[],
    tries: number,
    outcome: OrderOutcome,
    at: Moment,
  ): void {
    const { triesMax, retryMs } = this.#settings;
    if (!isAllMissing(outcome)) return;
    if (tries >= triesMax) {
      this.queue.decline("never_there");
      return;
    }
    const dueMs = at.nowMs + retryMs * tries;
    const again = () => this.#mark(prompt, names, tries + 1, { ...at, nowMs: dueMs });
    if (!this.#later.add(dueMs, again)) this.queue.decline("pending");
  }
}

/** Returns the token ranges inside reasoning, without the tokens that open and close it. */
function insideOf(output: Uint32Array, ids: ReasoningTokens, isOpen: boolean): [number, number][] {
  const inside: [number, number][] = [];
  let from = isOpen ? 0 : -1;
  for (const [at, token] of output.entries()) {
    if (token === ids.open && from < 0) from = at + 1;
    if (token !== ids.close || from < 0) continue;
    inside.push([from, at]);
    from = -1;
  }
  if (from >= 0) inside.push([from, output.length]);
  return inside;
}
