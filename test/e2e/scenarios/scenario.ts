import type { Stage } from "../stage.ts";

export interface Scenario {
  readonly name: string;
  /** Which kind of test it is. */
  readonly kind: "example" | "integration" | "end to end" | "transport" | "survival" | "http";
  run(stage: Stage): Promise<void>;
}
