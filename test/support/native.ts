import { describe, test } from "bun:test";
import { isRequired } from "../../scripts/lib/required.ts";
import { noteSkip } from "./skips.ts";

/** Set by the preload: `ready`, `skipped WHY` or `failed WHY`. */
export const NATIVE_VERDICT = "HEARTH_TEST_NATIVE";

export type NativeVerdict =
  | { readonly kind: "ready" }
  | { readonly kind: "skipped" | "failed"; readonly why: string };

export function nativeVerdict(): NativeVerdict {
  const text = process.env[NATIVE_VERDICT] ?? "skipped the preload did not run: use `bun test`";
  if (text === "ready") return { kind: "ready" };
  const kind = text.startsWith("failed ") ? "failed" : "skipped";
  return { kind, why: text.slice(kind.length + 1) };
}

/**
 * A `describe` for suites that call the native library. On a host that cannot have it they are
 * skipped with a printed reason; under `REQUIRE_NATIVE=1` or `CI=true`, or where the build broke,
 * they fail.
 */
export function describeNative(name: string, suite: () => void): void {
  const verdict = nativeVerdict();
  if (verdict.kind === "ready") {
    describe(name, suite);
  } else if (verdict.kind === "failed" || isRequired("NATIVE")) {
    test(`${name}: the native library`, () => {
      throw new Error(verdict.why);
    });
  } else {
    noteSkip(name, verdict.why);
    describe.skip(name, suite);
  }
}
