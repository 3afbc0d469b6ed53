/** An agent whose disk stands still from one SIGUSR2 to the next. For tests. */
import { loadNative, setFaults } from "../../src/native/index.ts";

let isFrozen = false;
process.on("SIGUSR2", () => {
  isFrozen = !isFrozen;
  setFaults(loadNative(), isFrozen ? "*:1+:freeze" : "");
});
await import("../../src/main.ts");
