import type { ActiveLoad } from "../active-load.ts";
import { CostInputs, emptyInput, HeldTokens } from "../choice/index.ts";
import type { PredictedPrefixes } from "../predict/index.ts";
import type { PrefixIndex } from "../prefix-index.ts";
import type { RouterSettings } from "../settings.ts";
import type { Target, WorkerTable } from "../workers.ts";
import type { Prompt } from "./prompt.ts";

export interface MeasureParts {
  readonly settings: RouterSettings;
  readonly table: WorkerTable;
  readonly index: PrefixIndex;
  readonly load: ActiveLoad;
  readonly predicted: PredictedPrefixes | null;
}

/** What all targets have of one prompt, and what it would add there: good until the next `take`. */
export class Measures {
  readonly #parts: MeasureParts;
  readonly #held = new HeldTokens();
  #additional = new Uint32Array(0);
  #predicted = new Uint32Array(0);
  #promptTokens = 0;
  /** Tokens up to where the index was exact. */
  #exactTokens = 0;

  constructor(parts: MeasureParts) {
    this.#parts = parts;
  }

  get exactTokens(): number {
    return this.#exactTokens;
  }

  take(prompt: Prompt): void {
    const { table, load, settings } = this.#parts;
    const width = (table.targets.at(-1)?.id ?? -1) + 1;
    if (this.#additional.length !== width) {
      this.#additional = new Uint32Array(width);
      this.#predicted = new Uint32Array(width);
    }
    this.#promptTokens = prompt.tokens;
    this.#held.start(width);
    this.#exactTokens = prompt.tokens;
    if (settings.useKvEvents) this.#look(prompt);
    this.#predict(prompt);
    if (settings.trackActiveBlocks) {
      load.additionalBlocks(prompt.own.hashes, prompt.tokens, this.#additional);
    }
  }

  of(targets: readonly Target[]): CostInputs {
    const { load } = this.#parts;
    const inputs = new CostInputs(targets.length);
    const input = emptyInput();
    for (let place = 0; place < targets.length; place++) {
      const { id } = targets[place]!;
      const { activePrefillTokens, activeBlocks, activeRequests } = load.of(id);
      // No more than there is, should a prompt say that it is shorter than its hashes.
      const device = Math.min(this.#held.deviceOf(id), this.#promptTokens);
      const host = Math.min(this.#held.hostOf(id), this.#promptTokens - device);
      input.deviceTokens = device;
      input.hostTokens = host;
      input.diskTokens = Math.min(this.#held.diskOf(id), this.#promptTokens - device - host);
      input.prefillTokens = activePrefillTokens;
      input.activeBlocks = activeBlocks;
      input.additionalBlocks = this.#additional[id]!;
      input.activeRequests = activeRequests;
      inputs.set(place, input);
    }
    return inputs;
  }

  #look(prompt: Prompt): void {
    for (const { hashes, blockTokens } of prompt.lookups) {
      if (hashes.length === 0) continue;
      const matches = this.#parts.index.match(hashes);
      this.#held.add(matches, blockTokens);
      if (matches.exactBlocks < hashes.length) {
        this.#exactTokens = Math.min(this.#exactTokens, matches.exactBlocks * blockTokens);
      }
    }
  }

  #predict({ own }: Prompt): void {
    const { predicted } = this.#parts;
    if (predicted === null) return;
    predicted.leading(own.hashes, this.#predicted);
    this.#held.addDevice(this.#predicted, own.blockTokens);
  }
}
