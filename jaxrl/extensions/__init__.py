"""Extensions of the common loop, one module each, by name in `Config.extensions`.

`critic` estimates advantages (PPO), `average` keeps a moving average of the parameters,
`kl_control` moves the weight of a divergence, `reference_refresh` renews the reference policy,
`sampler_refresh` renews the sampler on a schedule (KARL), `replay` trains again on earlier groups,
`corrector` adds corrected thoughts (GTR), `unmasked` trains on observations too, `guidance` helps
with the task's solutions, `branching` has episodes branch after results of tools (AEPO),
`policy_reward` scores with the policy itself, `judge` has a language model judge, `renormalise`
puts rewards in units of their history, `router` balances a mixture of experts, `nucleus` limits
which tokens may be chosen (NLPO), `logged` plays games of scripted players in place of the
policy's, `opponent` has other adapters play one side of a match, and `ilql` trains values that
steer evaluations. The other modules of this package say in their first line what they add.
`jaxrl.run.extension` says what an extension is.
"""
