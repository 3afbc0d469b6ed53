import type { KeySpace } from "../../observability/activity/index.ts";
import type { WorkerTable } from "../workers.ts";
import { distinctSpaces } from "./prompt.ts";

/** The key spaces of each model's workers, worked out anew when workers change. */
export class ModelSpaces implements Disposable {
  readonly #table: WorkerTable;
  readonly #blockTokens: number;
  readonly #byModel = new Map<string, readonly KeySpace[]>();
  readonly #end: Disposable;

  constructor(table: WorkerTable, blockTokens: number) {
    this.#table = table;
    this.#blockTokens = blockTokens;
    this.#end = table.listen(() => this.#byModel.clear());
  }

  of(model: string): readonly KeySpace[] {
    const known = this.#byModel.get(model);
    if (known !== undefined) return known;
    const targets = this.#table.targets.filter((target) => target.model === model);
    const all = targets.flatMap(({ spaces }) => spaces);
    const spaces = distinctSpaces(all, model, this.#blockTokens);
    // Names of models that nobody serves come from outside: they are not kept.
    if (targets.length > 0) this.#byModel.set(model, spaces);
    return spaces;
  }

  [Symbol.dispose](): void {
    this.#end[Symbol.dispose]();
  }
}
