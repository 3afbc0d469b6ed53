/** Opens the index in the folder it is given, says so or why not, and keeps it until killed. */
import { messageOf } from "../../../../src/core/index.ts";
import { openIndex } from "../index-kit.ts";

try {
  const index = await openIndex(process.argv[2]!);
  process.stdout.write(`open ${index.state.setAside?.why ?? "as it was"}\n`);
  setInterval(() => index.state, 1_000);
} catch (thrown) {
  process.stdout.write(`${(thrown as { code?: string }).code} ${messageOf(thrown)}\n`);
}
