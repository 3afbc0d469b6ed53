import type { WorkerTable } from "../index.ts";
import { PROXY_MODEL_DEFAULTS, type ProxyModel } from "./settings.ts";

/** What a client's `model` stands for. */
export interface NamedModel {
  /** As workers serve it. */
  readonly base: string;
  readonly loraName: string | null;
  readonly model: ProxyModel;
}

/** Names of models and of their adapters. */
export class ModelNames {
  readonly #table: WorkerTable;
  readonly #models: ReadonlyMap<string, ProxyModel>;
  readonly #adapters: ReadonlyMap<string, ProxyModel>;

  constructor(table: WorkerTable, models: readonly ProxyModel[]) {
    this.#table = table;
    this.#models = new Map(models.map((model) => [model.name, model]));
    this.#adapters = new Map(models.flatMap((model) => model.loras.map((lora) => [lora, model])));
  }

  /** The model of requests that name none: the only one that is served. Null: there are several. */
  only(): NamedModel | null {
    const [name, ...others] = new Set(this.#served().map(({ model }) => model));
    if (name === undefined || others.length > 0) return null;
    return { base: name, loraName: null, model: this.#modelOf(name) };
  }

  /** Null: nobody serves it, and it is not configured. */
  find(name: string, loraPath: unknown): NamedModel | null {
    const loraName = typeof loraPath === "string" && loraPath !== "" ? loraPath : null;
    if (this.#isServed(name) || this.#models.has(name)) {
      return { base: name, loraName, model: this.#modelOf(name) };
    }
    const adapted = this.#adapters.get(name);
    if (adapted !== undefined) return { base: adapted.name, loraName: name, model: adapted };
    return this.#withSuffix(name);
  }

  /** All that clients may ask for; an adapter with the model that it belongs to. */
  list(): { readonly id: string; readonly parent: string | null }[] {
    const served = new Set(this.#served().map((target) => target.model));
    const adapters = [...this.#adapters].filter(([, model]) => served.has(model.name));
    return [
      ...[...served].map((id) => ({ id, parent: null })),
      ...adapters.map(([id, model]) => ({ id, parent: model.name })),
    ];
  }

  /** SGLang's way to name an adapter: `model:adapter`. */
  #withSuffix(name: string): NamedModel | null {
    const colon = name.lastIndexOf(":");
    const base = name.slice(0, Math.max(0, colon));
    if (base === "" || !this.#isServed(base)) return null;
    return { base, loraName: name.slice(colon + 1), model: this.#modelOf(base) };
  }

  #modelOf(name: string): ProxyModel {
    return this.#models.get(name) ?? { name, ...PROXY_MODEL_DEFAULTS };
  }

  #served() {
    return this.#table.targets.filter(({ url, state }) => url !== null && state !== "gone");
  }

  #isServed(name: string): boolean {
    return this.#served().some(({ model }) => model === name);
  }
}
