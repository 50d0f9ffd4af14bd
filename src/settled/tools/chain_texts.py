"""What is said of a run of a chain, in English and Chinese: a sentence of fact to be read out, then one for the model.

As in `texts_en`: nothing that may have happened gets a word of failure or of completion. Plain named fields; a phrase
is empty when there is nothing to say.
"""

from collections.abc import Mapping

EN: Mapping[str, str] = {
    "succeeded": "The request “{summary}” was carried out: {done}.",
    "waiting": (
        "The request “{summary}” is under way.{done_phrase} A decision by {approver} is awaited for"
        " {step}{until_phrase}; the decision will be reported here."
    ),
    "running": (
        "The request “{summary}” is being processed.{done_phrase} The outcome of {step} is not known yet; it"
        " will be reported here."
    ),
    "unknown": (
        "The request “{summary}” was received.{done_phrase} The outcome of {step} is not known yet; it is"
        " being checked and will be reported here."
    ),
    "manual": (
        "The request “{summary}” was received.{done_phrase} The outcome of {step} is not known yet; a person"
        " has to check it, and it will be reported here."
    ),
    "stopped": (
        "The request “{summary}” was carried out in part.{done_phrase} Not carried out:"
        " {step}{reason_phrase}; a person has to decide how it goes on."
    ),
    "nothing": (
        "The request “{summary}” was not carried out: {step} did not take place{reason_phrase}. Nothing was changed."
    ),
    "compensating": (
        "The request “{summary}” could not be completed: {failed} did not take place{reason_phrase}. What was"
        " carried out before is being undone; the outcome will be reported here.{undone_phrase}"
    ),
    "waiting_to_undo": (
        "The request “{summary}” could not be completed: {failed} did not take place{reason_phrase}. Undoing"
        " {step} is waiting for a decision by {approver}{until_phrase}; the decision will be reported"
        " here.{undone_phrase}"
    ),
    "compensated": (
        "The request “{summary}” could not be completed: {failed} did not take place{reason_phrase}. What was"
        " carried out before has been undone: {undone}."
    ),
    "partially": (
        "The request “{summary}” could not be completed: {failed} did not take place{reason_phrase}. Still in"
        " effect: {left}. A person has to decide about that.{undone_phrase}"
    ),
    "undone_since": (
        "The request “{summary}” was carried out before, and steps of it have been undone since: {undone}.{left_phrase}"
    ),
    "conflict": (
        "The request “{summary}” was not submitted: the earlier request {chain_id} is for the same thing, and"
        " it differs in {differing}."
    ),
    "not_recorded": (
        "The request “{summary}” was received. Its outcome is not known yet; it is being checked and will be"
        " reported here."
    ),
    "not_begun": (
        "The request “{summary}” was not carried out: the other side was not available. Nothing was changed."
    ),
    "done_phrase": " Carried out so far: {done}.",
    "undone_phrase": " Undone so far: {undone}.",
    "left_phrase": " Still in effect: {left}.",
    "reason_phrase": " ({reason})",
    "until_phrase": " (until {until})",
    "with_receipt": "{step} (receipt {receipt})",
    "by_hand": "{step} (by hand)",
    "step": "the step “{name}”",
    "list": ", ",
    "someone": "the person in charge",
    "line": "Note for the assistant: do not call {name} again for this; tell the user the sentence above.",
    "duplicate_line": (
        "Nothing new was done: the above is the record of the earlier request {chain_id}. Only if the user"
        ' explicitly wants it all once more, pass repeat_of="{chain_id}"; a person will be asked first.'
    ),
    "invalid_line": (
        "Note for the assistant: correct what is named above and call {name} with the corrected value; if you"
        " do not know the value, ask the user."
    ),
}

ZH: Mapping[str, str] = {
    "succeeded": "请求“{summary}”已办理完毕：{done}。",
    "waiting": (
        "请求“{summary}”正在办理。{done_phrase}{step}正在等待{approver}审批{until_phrase}，审批结果会在这里告知。"
    ),
    "running": "请求“{summary}”正在处理中。{done_phrase}{step}的结果还不知道，有了结果会在这里告知。",
    "unknown": "请求“{summary}”已收到。{done_phrase}{step}的结果还不知道，正在核实，有了结果会在这里告知。",
    "manual": "请求“{summary}”已收到。{done_phrase}{step}的结果还不知道，需要由人工核实，有了结果会在这里告知。",
    "stopped": "请求“{summary}”已办理一部分。{done_phrase}{step}没有执行{reason_phrase}，后续如何办理须由人工决定。",
    "nothing": "请求“{summary}”没有执行：{step}没有执行{reason_phrase}，没有发生任何变化。",
    "compensating": (
        "请求“{summary}”未能全部办理：{failed}没有执行{reason_phrase}。之前已办理的部分正在撤销，有了结果会在"
        "这里告知。{undone_phrase}"
    ),
    "waiting_to_undo": (
        "请求“{summary}”未能全部办理：{failed}没有执行{reason_phrase}。撤销{step}正在等待{approver}审批{until_phrase}"
        "，审批结果会在这里告知。{undone_phrase}"
    ),
    "compensated": "请求“{summary}”未能全部办理：{failed}没有执行{reason_phrase}。之前已办理的部分已撤销：{undone}。",
    "partially": (
        "请求“{summary}”未能全部办理：{failed}没有执行{reason_phrase}。仍然有效的部分：{left}，须由人工决定如"
        "何处理。{undone_phrase}"
    ),
    "undone_since": "请求“{summary}”之前办理过，其中已撤销的部分：{undone}。{left_phrase}",
    "conflict": "请求“{summary}”没有提交：之前的请求 {chain_id} 是同一件事，两者的不同之处是：{differing}。",
    "not_recorded": "请求“{summary}”已收到，目前还不知道结果，正在核实，有了结果会在这里告知。",
    "not_begun": "请求“{summary}”没有执行：对方系统暂时不可用，没有发生任何变化。",
    "done_phrase": "目前已办理：{done}。",
    "undone_phrase": "目前已撤销：{undone}。",
    "left_phrase": "仍然有效的部分：{left}。",
    "reason_phrase": "（{reason}）",
    "until_phrase": "（截止时间：{until}）",
    "with_receipt": "{step}（凭证号：{receipt}）",
    "by_hand": "{step}（人工办理）",
    "step": "步骤“{name}”",
    "list": "、",
    "someone": "负责人",
    "line": "给助手的提示：不要就此事再次调用 {name}，请把上面的话告诉用户。",
    "duplicate_line": (
        "这次没有执行新的操作：以上是之前的请求 {chain_id} 的记录。只有在用户明确要求全部再办一次时，才传入 r"
        'epeat_of="{chain_id}"，系统会先请人确认。'
    ),
    "invalid_line": "给助手的提示：请改正上面指出的参数，用改正后的值调用 {name}；如果不知道正确的值，请询问用户。",
}
