import type { WorkerId } from "../../core/index.ts";
import {
  type CommandQueue,
  DelayQueue,
  isAllMissing,
  isSomeDone,
  type OrderOutcome,
} from "./command-queue.ts";
import type { CacheMark, Moment, Policy, RoutedPrompt } from "./policies.ts";
import { BlockUses, type PromptChain } from "./prompt-chain.ts";
import type { PolicySettings } from "./settings.ts";

/** A request's marks. They wait until its blocks are resident. */
interface Waiting {
  readonly owner: string;
  readonly marks: readonly CacheMark[];
}

/** A prefix pinned for an owner on a worker. */
interface Pin {
  readonly key: string;
  readonly account: Account;
  readonly chain: PromptChain;
  readonly blocks: number;
  readonly ttlMs: number;
  untilMs: number;
}

/** Pins of one owner on one worker. */
interface Account {
  readonly worker: WorkerId;
  readonly owner: string;
  readonly uses: BlockUses;
  tokens: number;
}

/**
 * Pins prefixes marked with `cache_control` on the worker that served them, once their blocks are
 * resident. A pin names only the deepest block, which protects all its ancestors. It expires unless
 * a later request uses the prefix with its mark. Pinned tokens are limited per owner and worker,
 * and in total. A mark beyond a limit is declined, without a command.
 */
export class CacheControl implements Policy {
  readonly queue: CommandQueue;
  readonly #settings: PolicySettings["cacheControl"];
  readonly #waiting = new Map<string, Waiting>();
  readonly #accounts = new Map<string, Account>();
  readonly #pins = new Map<string, Pin>();
  readonly #later: DelayQueue;

  constructor(queue: CommandQueue, settings: PolicySettings["cacheControl"]) {
    this.queue = queue;
    this.#settings = settings;
    this.#later = new DelayQueue(settings.pinsMax);
  }

  get pins(): number {
    return this.#pins.size;
  }

  /** Returns the tokens that this router has pinned for an owner on a worker. */
  tokensOf(worker: WorkerId, owner: string): number {
    return this.#accounts.get(accountKey(worker, owner))?.tokens ?? 0;
  }

  cacheControl(prompt: RoutedPrompt, owner: string, marks: readonly CacheMark[]): void {
    const { marksMax, pinsMax } = this.#settings;
    if (this.#waiting.size >= pinsMax) {
      this.queue.decline("waiting");
      return;
    }
    // Keep the last `marksMax` marks, as the API that defines `cache_control` does.
    this.#waiting.set(prompt.requestId, { owner, marks: marks.slice(-marksMax) });
  }

  prefillComplete(prompt: RoutedPrompt, at: Moment): void {
    const waiting = this.#waiting.get(prompt.requestId);
    if (waiting === undefined) return;
    this.#waiting.delete(prompt.requestId);
    for (const mark of waiting.marks) this.#want(prompt, waiting.owner, mark, at);
  }

  freed(prompt: RoutedPrompt, at: Moment): void {
    // If no first token was reported, the end of the answer proves that the prefill is complete.
    this.prefillComplete(prompt, at);
  }

  workerLeft(worker: WorkerId): void {
    for (const pin of this.#pins.values()) {
      if (pin.account.worker === worker) this.#release(pin);
    }
  }

  tick({ nowMs }: Moment): void {
    this.#later.run(nowMs);
    for (const pin of this.#pins.values()) if (pin.untilMs <= nowMs) this.#release(pin);
  }

  #want(prompt: RoutedPrompt, owner: string, mark: CacheMark, at: Moment): void {
    const { ttlMs, ttlMaxMs, tokensMin, pinsMax } = this.#settings;
    const { chain, target } = prompt;
    const blocks = Math.min(chain.blocks, Math.floor(mark.promptTokens / chain.blockTokens));
    if (blocks === 0 || blocks * chain.blockTokens < tokensMin) {
      this.queue.decline("short");
      return;
    }
    const wantedMs = Math.min(mark.ttlMs ?? ttlMs, ttlMaxMs);
    const name = chain.names(blocks - 1, blocks).join(" ");
    const key = `${accountKey(target.worker, owner)} ${name}`;
    const known = this.#pins.get(key);
    if (known !== undefined && known.untilMs - at.nowMs >= wantedMs / 2) return;
    if (known !== undefined) {
      this.#pin(prompt, known, 1, at);
      return;
    }
    if (this.#pins.size >= pinsMax) {
      this.#decline(prompt, "pins");
      return;
    }
    const account = this.#account(target.worker, owner);
    const pin = { key, account, chain, blocks, ttlMs: wantedMs, untilMs: at.nowMs + wantedMs };
    const why = this.#enter(pin);
    if (why === null) this.#pin(prompt, pin, 1, at);
    else this.#decline(prompt, why);
  }

  #pin(prompt: RoutedPrompt, pin: Pin, tries: number, at: Moment): void {
    const { account, chain, blocks, ttlMs } = pin;
    const isSent = this.queue.send({
      requestId: prompt.requestId,
      worker: account.worker,
      command: {
        type: "Cache",
        block_hashes: chain.names(blocks - 1, blocks),
        pin: true,
        ttl_seconds: ttlMs / 1_000,
        owner: account.owner,
      },
      settled: (outcome) => this.#settled(prompt, pin, tries, outcome, at),
    });
    if (!isSent && pin.untilMs === at.nowMs + ttlMs) this.#release(pin);
  }

  #settled(prompt: RoutedPrompt, pin: Pin, tries: number, outcome: OrderOutcome, at: Moment): void {
    const { triesMax, retryMs } = this.#settings;
    if (isSomeDone(outcome)) {
      pin.untilMs = Math.max(pin.untilMs, at.nowMs + pin.ttlMs);
      return;
    }
    // The agent may have executed the command: count the pin until its TTL has passed.
    if (outcome.kind === "no_answer") return;
    if (isAllMissing(outcome) && tries < triesMax) {
      const dueMs = at.nowMs + retryMs * tries;
      const again = () => {
        if (this.#pins.get(pin.key) !== pin) return;
        this.#pin(prompt, pin, tries + 1, { ...at, nowMs: dueMs });
      };
      if (this.#later.add(dueMs, again)) return;
    }
    this.#release(pin);
  }

  #account(worker: WorkerId, owner: string): Account {
    const key = accountKey(worker, owner);
    const known = this.#accounts.get(key);
    if (known !== undefined) return known;
    const account = { worker, owner, uses: new BlockUses(), tokens: 0 };
    this.#accounts.set(key, account);
    return account;
  }

  /** Counts a pin against the limits. Returns null, or the reason why the pin is declined. */
  #enter(pin: Pin): string | null {
    const { account, chain, blocks } = pin;
    const { ownerTokensMax, workerTokensMax } = this.#settings;
    const isNew = Math.max(0, blocks - account.uses.firstFree(chain)) * chain.blockTokens;
    const onWorker = [...this.#accounts.values()]
      .filter(({ worker }) => worker === account.worker)
      .reduce((sum, { tokens }) => sum + tokens, 0);
    const isOver = account.tokens + isNew > ownerTokensMax;
    if (isOver || onWorker + isNew > workerTokensMax) {
      this.#dropIfEmpty(account);
      return isOver ? "owner_budget" : "worker_budget";
    }
    this.#pins.set(pin.key, pin);
    this.#count(pin, () => account.uses.add(chain, 0, blocks));
    return null;
  }

  #release(pin: Pin): void {
    if (this.#pins.get(pin.key) !== pin) return;
    this.#pins.delete(pin.key);
    this.#count(pin, () => pin.account.uses.remove(pin.chain, 0, pin.blocks));
    this.#dropIfEmpty(pin.account);
  }

  #count({ account, chain }: Pin, change: () => void): void {
    const before = account.uses.size;
    change();
    account.tokens += (account.uses.size - before) * chain.blockTokens;
  }

  #dropIfEmpty(account: Account): void {
    if (account.uses.size > 0) return;
    this.#accounts.delete(accountKey(account.worker, account.owner));
  }

  #decline({ requestId, target: { worker } }: RoutedPrompt, reason: string): void {
    this.queue.declineFor({ requestId, worker, command: { type: "Cache" } }, reason);
  }
}

function accountKey(worker: WorkerId, owner: string): string {
  return `${worker} ${owner}`;
}
