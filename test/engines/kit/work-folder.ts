import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** A temporary folder that goes with its scope, and with this process if that ends first. */
export class WorkFolder implements Disposable {
  readonly path = mkdtempSync(join(tmpdir(), "hearth-"));
  readonly #remove = () => rmSync(this.path, { recursive: true, force: true });

  constructor() {
    process.on("exit", this.#remove);
  }

  [Symbol.dispose](): void {
    process.off("exit", this.#remove);
    if (process.env.HEARTH_ENGINES_KEEP !== "1") this.#remove();
  }
}
