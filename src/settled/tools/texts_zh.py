"""Chinese texts for `settled.tools.messages`; the same keys and the same rules as `texts_en`."""

SENTENCES = {
    "succeeded": "请求“{summary}”已办理完毕。{receipt_phrase}",
    "in_progress": "请求“{summary}”正在处理中，结果还不知道，有了结果会在这里告知。",
    "waiting_for_approval": (
        "请求“{summary}”正在等待{approver}审批{until_phrase}。目前什么都还没有执行，审批结果会在这里告知。"
    ),
    "denied": "请求“{summary}”没有得到{approver}的批准{reason_phrase}，没有执行任何操作。",
    "expired": "请求“{summary}”没有执行：{approver}没有在期限内作出审批{deadline_phrase}，没有发生任何变化。",
    "changed_by_person": "请求“{summary}”已由人工修改{changes_phrase}，将按修改后的内容处理；原来的请求没有执行。",
    "withdrawn": "请求“{summary}”已被撤回{reason_phrase}，没有执行任何操作。",
    "unknown": "请求“{summary}”已收到，目前还不知道结果，正在核实，有了结果会在这里告知。",
    "manual_review": "请求“{summary}”已收到，目前还不知道结果，需要由人工核实，有了结果会在这里告知。",
    "rejected": "请求“{summary}”未获通过{reason_phrase}。{earlier_receipt_phrase}",
    "invalid": "请求“{summary}”没有被接受{field_phrase}{reason_phrase}，没有执行任何操作。",
    "forbidden": "请求“{summary}”没有执行：缺少所需的权限{reason_phrase}。",
    "budget_exceeded": "请求“{summary}”没有执行：此类请求已达到限额{reason_phrase}。",
    "conflict": (
        "请求“{summary}”没有提交：之前的请求 {earlier} {earlier_state}，两者的不同之处是："
        "{differing}。{earlier_receipt_phrase}"
    ),
    "conflict_remote": "请求“{summary}”没有被接受：对方系统已用同一编号登记了另一笔请求，需要由人工查看。",
    "unavailable": "请求“{summary}”没有执行：对方系统暂时不可用，没有发生任何变化。",
    "not_done": "请求“{summary}”没有执行：已由人工核实，没有发生任何变化。",
    "stopped": "请求“{summary}”没有执行：在提交之前已被停止，没有发生任何变化。",
    "undone": "请求“{summary}”之前办理过，现已撤销。{receipt_phrase}",
    "undoing": "请求“{summary}”之前办理过，目前正在撤销，有了结果会在这里告知。",
    "closed": "请求“{summary}”之前已经关闭，没有执行任何操作{reason_phrase}。",
}

LINES = {
    "succeeded": "给助手的提示：请把上面第一句话告诉用户。",
    "in_progress": "给助手的提示：不要再次提交，请把上面这句话告诉用户。",
    "waiting_for_approval": "给助手的提示：你不能代为审批，不要再次提交，请把上面这句话告诉用户。",
    "denied": "给助手的提示：这一决定有效，不要再次提交，请把上面这句话告诉用户。",
    "expired": "给助手的提示：不要自行再次提交，请把上面这句话告诉用户。",
    "changed_by_person": "给助手的提示：这是人工的决定，不得再提交原来的请求，请把上面这句话告诉用户。",
    "withdrawn": "给助手的提示：不要自行再次提交，请把上面这句话告诉用户。",
    "unknown": "给助手的提示：不要再次提交，请把上面这句话告诉用户。",
    "manual_review": "给助手的提示：不要再次提交，请把上面这句话告诉用户。",
    "rejected": "给助手的提示：这是最终答复，不要再次提交，请把原因告诉用户。",
    "invalid": "给助手的提示：请改正上面指出的参数，用改正后的值调用工具；如果不知道正确的值，请询问用户。",
    "forbidden": "给助手的提示：到此为止，不要寻找其他工具或其他途径，请告诉用户需要授权。",
    "budget_exceeded": "给助手的提示：到此为止，不要拆分或再次提交，请把上面这句话告诉用户。",
    "conflict": (
        "给助手的提示：不要换个值再提交。如果用户明确要求在之前那一笔之外再办一笔，请传入"
        ' repeat_of="{earlier}"，系统会先请人确认；如果要更正之前那一笔，须由人工处理。'
    ),
    "conflict_remote": "给助手的提示：不论原值还是换个值，都不要再次提交，请把上面这句话告诉用户。",
    "unavailable": "给助手的提示：不要自行再次提交，请把上面这句话告诉用户。",
    "not_done": "给助手的提示：不要自行再次提交，请把上面这句话告诉用户。",
    "stopped": "给助手的提示：不要自行再次提交，请把上面这句话告诉用户。",
    "undone": "给助手的提示：不要自行再次提交，请把上面这句话告诉用户。",
    "undoing": "给助手的提示：不要再次提交，请把上面这句话告诉用户。",
    "closed": "给助手的提示：不要自行再次提交，请把上面这句话告诉用户。",
    "duplicate": (
        "这次没有执行新的操作：以上是之前的请求 {earlier} 的记录。只有在用户明确要求再办一笔时，才传入"
        ' repeat_of="{earlier}"，系统会先请人确认。'
    ),
}

PHRASES = {
    "receipt_phrase": "凭证号：{receipt}。",
    "earlier_receipt_phrase": "之前那一笔的凭证号：{receipt}。",
    "reason_phrase": "（{reason}）",
    "until_phrase": "（截止时间：{until}）",
    "deadline_phrase": "（期限：{until}）",
    "field_phrase": "：参数“{field}”不符合要求",
    "missing_phrase": "：缺少参数“{field}”",
    "no_such_phrase": "：没有名为“{field}”的参数",
    "changes_phrase": "（{changes}）",
}

STATES = {
    "planned": "正在等待审批",
    "approved": "即将处理",
    "running": "正在处理中",
    "succeeded": "已办理完毕",
    "unknown": "正在核实，结果还不知道",
    "failed": "已经关闭，没有执行",
    "cancelled": "已经撤回，没有执行",
    "compensation_pending": "正在撤销",
    "compensated": "已撤销",
}

WORDS = {
    "someone": "负责人",
    "policy": "相关规定",
    "sentence_separator": "",
    "before_now": "{name}（之前为 {before}，这次为 {now}）",
    "absent": "无",
    "its_arguments": "参数",
    "state_unclear": "已有记录",
    "list_separator": "；",
    "result": "结果：{result}",
    "no_result": "没有结果。",
}

RULES = {
    "missing": "缺少该参数",
    "no_such": "该工具没有这个参数",
    "whole_number": "必须是整数",
    "number": "必须是数字",
    "finite": "必须是有限的数字",
    "not_a_truth": "必须是数字，不能是真假值",
    "text": "必须是文本",
    "truth": "必须是真或假",
    "list": "必须是列表",
    "object": "必须是由名称和值组成的对象",
    "date": "必须是有效的日期",
    "instant": "必须是有效的日期和时间",
    "time_zone": "必须注明时区",
    "at_least": "不得小于 {}",
    "more_than": "必须大于 {}",
    "at_most": "不得大于 {}",
    "less_than": "必须小于 {}",
    "multiple": "必须是 {} 的倍数",
    "text_at_least": "至少要有 {} 个字符",
    "text_at_most": "最多只能有 {} 个字符",
    "pattern": "必须符合格式 {}",
    "list_at_least": "至少要有 {} 项",
    "list_at_most": "最多只能有 {} 项",
    "places": "小数最多 {} 位",
    "digits": "数字最多 {} 位",
    "one_of": "只能是 {} 之一",
    "wide_number": "必须是 64 位以内的整数，更大的数请以文本形式给出",
    "nul": "不得含有空字符（NUL）",
    "budget": "已用 {}，限额 {}，这次还需要 {}",
    "authors": "{}",
}
