import { describe } from "bun:test";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "../../../scripts/lib/paths.ts";
import { noteSkip } from "../../support/index.ts";

/**
 * Full public traces with their reference figures; lies beside the checkout where there is a copy.
 */
const FOLDER = join(ROOT, "../shared/traces");

/**
 * A `describe` for suites that read the full traces. Hearth never needs them: without the folder
 * the suite is skipped with a printed reason, or fails under `REQUIRE_TRACES=1`.
 */
export function describeTraces(name: string, suite: (folder: string) => void): void {
  const present = existsSync(join(FOLDER, "tables.json"));
  if (present || process.env.REQUIRE_TRACES === "1") {
    describe(name, () => suite(FOLDER));
  } else {
    noteSkip(name, "no full traces in ../shared/traces");
    describe.skip(name, () => suite(FOLDER));
  }
}
