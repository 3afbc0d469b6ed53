/**
 * An agent whose calls fail as HEARTH_TEST_PLAN says, and whose disk stands still from one SIGUSR2
 * to the next. For tests.
 */
import { loadNative, setFaults } from "../../src/native/index.ts";

const plan = process.env.HEARTH_TEST_PLAN ?? "";
let isFrozen = false;
setFaults(loadNative(), plan);
process.on("SIGUSR2", () => {
  isFrozen = !isFrozen;
  setFaults(loadNative(), isFrozen ? "*:1+:freeze" : plan);
});
await import("../../src/main.ts");
