import { run } from "./run.ts";
import { type Outcome, parseZigSummary } from "./summary.ts";
import { hostTarget, TARGETS } from "./targets.ts";
import { findZig, zigEnvironment } from "./zig.ts";

/** The Zig tests, compiled as the library is: what is tested is what ships. */
export async function runZigTests(): Promise<Outcome> {
  const host = hostTarget();
  if (!host.ok) return { kind: "skipped", why: host.why };
  const zig = findZig();
  if (zig === undefined) return { kind: "skipped", why: "no Zig in node_modules" };
  const { zigTarget, zigCpu } = TARGETS[host.target];
  const flags = ["-Doptimize=ReleaseSafe", `-Dtarget=${zigTarget}`, `-Dcpu=${zigCpu}`];
  const result = await run([zig, "build", "test", ...flags, "--summary", "all"], {
    env: zigEnvironment(),
    echo: true,
  });
  return parseZigSummary(result.output, result.code);
}
