import { describe, test } from "bun:test";
import { findNatsServer } from "../../scripts/lib/nats-server.ts";
import { isRequired } from "../../scripts/lib/required.ts";
import { noteSkip } from "./skips.ts";

export {
  NatsServer,
  type NatsServerOptions,
  type NatsTls,
} from "../../scripts/lib/nats-process.ts";

/**
 * A `describe` for suites that start a real nats-server. Where there is none they are skipped with
 * a printed reason; under `REQUIRE_NATS=1` or `CI=true` they fail.
 */
export function describeNats(name: string, suite: () => void): void {
  const verdict = findNatsServer();
  if (verdict.kind === "ready") {
    describe(name, suite);
  } else if (isRequired("NATS")) {
    test(`${name}: nats-server`, () => {
      throw new Error(verdict.why);
    });
  } else {
    noteSkip(name, verdict.why);
    describe.skip(name, suite);
  }
}
