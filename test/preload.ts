/**
 * Runs once before any test file: builds the native library, and the stand-ins for those of
 * devices, when Zig is there (nothing to do when they are fresh), and says what is skipped when it
 * is not. The verdict travels in the environment, because test files and the processes they start
 * must see the same one; so does where a nats-server is that was brought for the tests.
 */
import { delimiter, dirname } from "node:path";
import { ensureHost, ensureStandIns } from "../scripts/lib/native-build.ts";
import { findNatsServer } from "../scripts/lib/nats-server.ts";
import { NATIVE_VERDICT } from "./support/native.ts";

const library = await ensureHost();
const outcome =
  library.kind === "fresh" || library.kind === "built" ? await ensureStandIns() : library;
if (outcome.kind === "failed") {
  process.stderr.write(`${outcome.output}\nnative: ${outcome.why}\n`);
  process.env[NATIVE_VERDICT] = `failed ${outcome.why}`;
} else if (outcome.kind === "skipped") {
  process.stderr.write(`native: suites that need the library are skipped: ${outcome.why}\n`);
  process.env[NATIVE_VERDICT] = `skipped ${outcome.why}`;
} else {
  process.env[NATIVE_VERDICT] = "ready";
}

const nats = findNatsServer();
if (nats.kind === "ready") {
  process.env.PATH = `${process.env.PATH ?? ""}${delimiter}${dirname(nats.path)}`;
}
