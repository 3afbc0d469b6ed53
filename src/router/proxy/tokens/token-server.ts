import { type Clock, messageOf } from "../../../core/index.ts";
import { markedTokens } from "./marks.ts";
import { loadTokenModel, type TokenModel } from "./model.ts";
import type { TokenAnswer, TokenOrder } from "./protocol.ts";

/** Answers orders one after the other: in a thread, or in between. */
export class TokenServer {
  readonly #models = new Map<string, TokenModel>();
  readonly #clock: Pick<Clock, "wallMs">;

  /** The clock is for templates that ask for the time. */
  constructor(clock: Pick<Clock, "wallMs">) {
    this.#clock = clock;
  }

  answer(order: TokenOrder): TokenAnswer {
    const { id } = order;
    try {
      if (order.kind === "load") {
        const model = loadTokenModel(order.files, order.cacheTokens, this.#clock);
        this.#models.set(order.files.name, model);
        return { kind: "loaded", id, reasoning: model.reasoning, hasTemplate: model.hasTemplate };
      }
      const model = this.#models.get(order.model);
      if (model === undefined) return { kind: "failed", id, why: "the model is not loaded" };
      if (order.encode !== null) {
        const tokens = model.encode(order.text, order.encode);
        return { kind: "tokens", id, tokens, marks: [], hasMedia: false };
      }
      return { kind: "tokens", id, ...markedTokens(model, order.text) };
    } catch (thrown) {
      return { kind: "failed", id, why: messageOf(thrown) };
    }
  }
}
