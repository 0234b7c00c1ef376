-- Only functions: a bucket for each distinct rate, and gates that exist when an execution reaches them (functions/).
SELECT;

-- formerly 758b4b0193fa6fbc7c79b337eb5d768a3b50913fbe30d5b5b4627075c1e50215
